package redisstore

import (
	"context"
	"time"
)

// Client is what the store needs of a Redis client library. Open brings one over
// rueidis; package redisstore/goredis makes one of a go-redis client. All methods
// may be called from many goroutines at once, and return soon after their context
// has ended.
//
// Errors are of three kinds, and safety rests on their being told apart: a
// [ServerError] is what the server answered; a [NotSentError] says that nothing
// of the request was sent or can be sent later; after any other error the request
// may have been applied or may still be. A request is sent once: after an error
// of the network it is never repeated by the client itself.
type Client interface {
	// String says where the server is, without a password.
	String() string
	// Mode tells what the client speaks to.
	Mode() Mode
	// Eval runs a script, by its SHA and, if the server does not know that, by its
	// text. An array that it answers is flattened, numbers are in decimal.
	Eval(ctx context.Context, s *Script, keys, args []string) ([]string, error)
	// EvalAll runs a script once for each call, in as few round trips as it can.
	EvalAll(ctx context.Context, s *Script, calls []Call) []Answer
	// EvalAcked runs a script and, on the same connection, WAIT: it tells how many
	// replicas have acknowledged what the script wrote. A script whose answer
	// begins with anything but one of the letters in only is not waited for.
	EvalAcked(ctx context.Context, s *Script, keys, args []string, only string, replicas int, timeout time.Duration) (answer []string, acked int, err error)
	// EachPrimary calls f for every server that takes writes, one after another,
	// until f fails.
	EachPrimary(ctx context.Context, f func(n Node) error) error
	// Replica returns a replica of the primary by the address that the primary reports.
	// The client keeps the connection until Close.
	Replica(ctx context.Context, address string) (Node, error)
	// Subscribe listens to a channel until the context or the subscription ends,
	// with an error that says why. It calls ready each time the subscription
	// stands, and got for each message; neither blocks.
	Subscribe(ctx context.Context, channel string, ready func(), got func(message string)) error
	// Close ends what is under way and gives back what the client opened itself.
	Close()
}

// Commander is implemented by clients that can send commands to the server of a key.
// Without it the layout [Plain] uses scripts alone.
type Commander interface {
	// Commands sends commands, of which the second word is the key or channel, in as few
	// round trips as it can. Commands of one hash slot are executed in their order.
	Commands(ctx context.Context, commands [][]string) []Answer
}

// Node is one server.
type Node interface {
	// Command sends one command to it. Its answer is flattened as that of Eval.
	Command(ctx context.Context, args ...string) ([]string, error)
}

// Mode is what a client speaks to.
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

// Answer is the answer to a Call.
type Answer struct {
	Values []string
	Err    error
}

// ServerError is an error that the server answered: "WRONGTYPE Operation ...".
type ServerError string

func (e ServerError) Error() string { return string(e) }

// NotSentError says that a request was certainly not sent.
type NotSentError struct{ Err error }

func (e *NotSentError) Error() string { return e.Err.Error() }

// Unwrap returns the reason.
func (e *NotSentError) Unwrap() error { return e.Err }
