package server

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/calls"
)

var errLost = errors.New("the answer was lost")

type withMode struct {
	Client
	mode Mode
}

func (m *withMode) Mode() Mode { return m.mode }
func (m *withMode) Reconnect() {}

// TestExplainAddsCode requires the right code for each error. The code decides whether the caller
// undoes the request, so each code except Unknown requires that the outcome is known.
func TestExplainAddsCode(t *testing.T) {
	for _, c := range []struct {
		err  error
		mode Mode
		want driver.Code
	}{
		{errLost, Standalone, driver.CodeUnknown},
		{context.DeadlineExceeded, Standalone, driver.CodeUnknown},
		{&NotSentError{errLost}, Standalone, driver.CodeUnavailable},
		{fmt.Errorf("wrapped: %w", &NotSentError{errLost}), Standalone, driver.CodeUnavailable},
		{&NotSentError{ServerError("WRONGPASS invalid username-password pair or user is disabled.")}, Standalone, driver.CodeRefused},
		{ServerError("NOAUTH Authentication required."), Standalone, driver.CodeRefused},
		{ServerError("NOPERM this user has no permissions to run the 'evalsha' command"), Standalone, driver.CodeRefused},
		{ServerError("WRONGTYPE Operation against a key holding the wrong kind of value"), Standalone, driver.CodeRefused},
		{ServerError("ERR Error running script (call to f_0): @user_script:1: WRONGTYPE Operation"), Standalone, driver.CodeRefused},
		{ServerError("OOM command not allowed when used memory > 'maxmemory'."), Standalone, driver.CodeRefused},
		{ServerError("ERR unknown command 'EVALSHA'"), Standalone, driver.CodeRefused},
		{ServerError("LOADING Redis is loading the dataset in memory"), Standalone, driver.CodeUnavailable},
		{ServerError("CLUSTERDOWN The cluster is down"), Cluster, driver.CodeUnavailable},
		{ServerError("TRYAGAIN Multiple keys request during rehashing of slot"), Cluster, driver.CodeUnavailable},
		{ServerError("READONLY You can't write against a read only replica."), Standalone, driver.CodeUnavailable},
		{ServerError("READONLY You can't write against a read only replica."), Sentinel, driver.CodeUnavailable},
		{ServerError("MOVED 1 127.0.0.1:7000"), Standalone, driver.CodeRefused},
		{ServerError("MOVED 1 127.0.0.1:7000"), Cluster, driver.CodeUnavailable},
		{ServerError("ERR something new"), Standalone, driver.CodeUnknown},
		{calls.ErrClosed, Standalone, driver.CodeClosed},
	} {
		s := &Server{Client: &withMode{mode: c.mode}}
		err := s.Explain(c.err)
		if got := driver.CodeOf(err); got != c.want {
			t.Errorf("%v: %v, want %v", c.err, got, c.want)
		}
		if !strings.Contains(err.Error(), c.err.Error()) {
			t.Errorf("the error %v does not contain %v", err, c.err)
		}
	}
	s := &Server{Client: &withMode{}}
	wrongType := ServerError("WRONGTYPE Operation against a key holding the wrong kind of value")
	if err := s.Explain(wrongType); !strings.Contains(err.Error(), "use a namespace") {
		t.Errorf("without a key: %v", err)
	}
	if err := s.Explain(wrongType, "lock"); driver.CodeOf(err) != driver.CodeRefused || !strings.Contains(err.Error(), "lock") {
		t.Errorf("with a key: %v", err)
	}
	denied := ServerError("NOPERM No permissions to access a key")
	for key, help := range map[string]string{"holdfast:{0a1}::x": "keys holdfast:*", "lock": "the keys of the lock: lock"} {
		if err := s.Explain(denied, key); driver.CodeOf(err) != driver.CodeRefused || !strings.Contains(err.Error(), help) {
			t.Errorf("without the right to %s: %v", key, err)
		}
	}
	if !IsTryAgain(ServerError("TRYAGAIN x")) || IsTryAgain(errLost) {
		t.Error("IsTryAgain does not recognize TRYAGAIN")
	}
}

func TestClockFollowsServer(t *testing.T) {
	var c Clock
	sent := Micros()
	c.Learn(sent, 1_700_000_000_000_000)
	if now := c.Now(); now < 1_700_000_000_000_000 || now > 1_700_000_000_000_000+Micros()-sent {
		t.Errorf("now is %d", now)
	}
	if d := c.Deadline() - c.Now(); d > Window.Microseconds() || d < Window.Microseconds()-1e6 {
		t.Errorf("a request is accepted for %d us", d)
	}
	c.Learn(Micros(), 1_600_000_000_000_000) // the server's clock was set back
	if now := c.Now(); now > 1_600_000_100_000_000 {
		t.Errorf("now is %d after the clock was set back", now)
	}
}

func TestHighWaterOnlyRises(t *testing.T) {
	var f HighWater
	f.Raise(4095, 7)
	f.Raise(4095, 5)
	f.Raise(0, 1)
	if f.Text(4095) != "7" || f.Text(0) != "1" || f.Text(64) != "0" {
		t.Errorf("%s %s %s", f.Text(4095), f.Text(0), f.Text(64))
	}
}

// TestScriptIsLoadedOnceForManyCalls makes a thousand calls to two servers that do not have the
// script. It requires that one call per server loads the script, and that the others go out
// together.
func TestScriptIsLoadedOnceForManyCalls(t *testing.T) {
	calls := make([]Call, 1000)
	for i := range calls {
		calls[i].Keys = []string{fmt.Sprint("key", i)}
	}
	loaded := map[int]bool{} // by server
	server := func(c Call) int { return int(c.Keys[0][len(c.Keys[0])-1]) % 2 }
	pipelines, single := 0, 0
	answers := evalPipelined(calls, func(some []Call) []Answer {
		pipelines++
		answers := make([]Answer, len(some))
		for i, c := range some {
			answers[i].Values = c.Keys
			if !loaded[server(c)] {
				answers[i] = Answer{Err: ServerError("NOSCRIPT No matching script.")}
			}
		}
		return answers
	}, func(c Call) Answer {
		single++
		loaded[server(c)] = true
		return Answer{Values: c.Keys}
	})
	if pipelines != 3 || single != 2 {
		t.Errorf("%d pipelines and %d single calls, want 3 and 2", pipelines, single)
	}
	for i, a := range answers {
		if a.Err != nil || a.Values[0] != calls[i].Keys[0] {
			t.Fatalf("call %d: %+v", i, a)
		}
	}
}
