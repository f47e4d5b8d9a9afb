// Package service tests what a service does with locks in its ordinary life, on every
// store: it starts, waits, leads, drains at SIGTERM and closes, it is killed and paused,
// and its server stops and starts again. The replicas are processes of their own.
package service
