// Package service tests, on every store, what a service does with locks. The service starts,
// waits, leads, drains at SIGTERM and closes. Tests kill and pause it, and restart its
// server. The replicas are processes of their own.
package service
