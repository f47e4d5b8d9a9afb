package server

import (
	"context"
	"strings"
	"time"
)

// Client sends the requests of a store, by go-redis. It is an interface for tests that change requests or
// answers. Package redisstore describes the errors.
type Client interface {
	// String returns where the server is, without a password.
	String() string
	// Mode returns the kind of server that the client uses.
	Mode() Mode
	// Eval runs a script by its SHA or, if the server does not have it, by its text. It
	// flattens an array in the answer, and returns numbers in decimal.
	Eval(ctx context.Context, s *Script, keys, args []string) ([]string, error)
	// EvalAll runs a script once for each call, in as few round trips as it can.
	EvalAll(ctx context.Context, s *Script, calls []Call) []Answer
	// Commands sends commands, of which the second word is the key or channel, in as few
	// round trips as it can. Commands of one hash slot are executed in their order.
	Commands(ctx context.Context, commands [][]string) []Answer
	// EvalAcked runs a script and, on the same connection, WAIT. It returns the number of
	// replicas that have acknowledged what the script wrote. It skips WAIT if the answer does not
	// start with the text in only.
	EvalAcked(ctx context.Context, s *Script, keys, args []string, only string, replicas int, timeout time.Duration) (answer []string, acked int, err error)
	// EachPrimary calls f for every server that accepts writes, one after another, until f
	// returns an error.
	EachPrimary(ctx context.Context, f func(n Node) error) error
	// Replica returns a replica of the primary by the address that the primary reports.
	// The client keeps its connection to the replica until Close.
	Replica(ctx context.Context, address string) (Node, error)
	// Subscribe listens to a channel until the context or the subscription ends, and returns
	// the reason. It calls ready each time the subscription begins, and got for each message.
	// Neither of these functions blocks.
	Subscribe(ctx context.Context, channel string, ready func(), got func(message string)) error
	// SubscribeSharded is Subscribe, with SSUBSCRIBE at the node of the channel.
	SubscribeSharded(ctx context.Context, channel string, ready func(), got func(message string)) error
	// Reconnect ends the subscriptions, and closes connections or replaces them before their next use:
	// the address may lead to another server now. A request under way may fail. A client of a Cluster
	// need not do anything. Reconnect returns within about a second.
	Reconnect()
	// Close waits for the requests under way, or ends them. It closes the connections that the client
	// opened.
	Close()
}

// Node is one server.
type Node interface {
	// Command sends one command to the server, and flattens its answer as Eval does.
	Command(ctx context.Context, args ...string) ([]string, error)
}

// Mode is the kind of server that a client uses.
type Mode int

// The modes.
const (
	// Standalone is one server, perhaps with replicas.
	Standalone Mode = iota
	// Sentinel finds the primary through Redis Sentinel.
	Sentinel
	// Cluster is a Redis Cluster.
	Cluster
)

// Call is one of several evaluations.
type Call struct{ Keys, Args []string }

// Answer is the answer to a Call or to a command.
type Answer struct {
	Values []string
	Err    error
}

// ServerError is an error that the server returned: "WRONGTYPE Operation ...".
type ServerError string

func (e ServerError) Error() string { return string(e) }

// serverError returns the error of an answer. A server without the command repeats its arguments, which may be those of
// a login.
func serverError(answer string) ServerError {
	answer, _, _ = strings.Cut(answer, ", with args")
	return ServerError(answer)
}

// NotSentError means that a request was certainly not sent.
type NotSentError struct{ Err error }

func (e *NotSentError) Error() string { return e.Err.Error() }

// Unwrap returns the reason.
func (e *NotSentError) Unwrap() error { return e.Err }
