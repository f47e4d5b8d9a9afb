//go:build tools

// Package nats pins the version of nats-server that the tests build and run.
package nats

import _ "github.com/nats-io/nats-server/v2"
