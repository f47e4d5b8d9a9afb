package redisstore

import "github.com/holdfast-go/holdfast/redisstore/internal/server"

// The client of a store, for tests that change requests or answers.
type (
	// Client sends the requests of a store, by go-redis. All methods are safe for concurrent use, and
	// return soon after their context has ended.
	//
	// Errors are of three kinds, and safety depends on the difference. A [ServerError] is an answer of
	// the server. A [NotSentError] means that nothing of the request was sent or can be sent later.
	// After any other error the request may have been applied, or may be applied later. A client
	// sends a request once: it never repeats one after an error of the network.
	Client = server.Client
	// Node is one server.
	Node = server.Node
	// Mode is the kind of server that a client uses.
	Mode = server.Mode
	// Script is a Lua script that runs at the server.
	Script = server.Script
	// Call is one of several evaluations of a script.
	Call = server.Call
	// Answer is the answer to a Call or to a command.
	Answer = server.Answer
	// ServerError is an error that the server returned: "WRONGTYPE Operation ...".
	ServerError = server.ServerError
	// NotSentError means that a request was certainly not sent.
	NotSentError = server.NotSentError
)

// The modes: one server, perhaps with replicas; a primary that Redis Sentinel names; a Redis Cluster.
const (
	Standalone = server.Standalone
	Sentinel   = server.Sentinel
	Cluster    = server.Cluster
)
