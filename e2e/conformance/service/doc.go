// Package service tests, on every store, a service that uses locks. The service starts, waits,
// leads, drains at SIGTERM and closes. The tests also kill and pause it, and restart its server.
// Each replica of the service is a process of its own.
package service
