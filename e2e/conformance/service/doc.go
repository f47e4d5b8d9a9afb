// Package service tests on every store how a service uses locks. The service starts,
// waits, leads, drains after SIGTERM and closes. Tests kill and pause it, and restart its
// server. Each replica of the service is a process of its own.
package service
