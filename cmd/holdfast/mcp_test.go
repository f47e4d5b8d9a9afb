//go:build linux || darwin

package main_test

import (
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// assistant is a client of holdfast mcp.
type assistant struct {
	t       *testing.T
	session *mcp.ClientSession
	process *os.Process
}

func (w *sandbox) assistant() *assistant {
	w.t.Helper()
	cmd := exec.Command(binary, "mcp")
	cmd.Env, cmd.Dir = w.env, w.dir
	client := mcp.NewClient(&mcp.Implementation{Name: "test"}, nil)
	session, err := client.Connect(w.t.Context(), &mcp.CommandTransport{Command: cmd}, nil)
	must(w.t, err)
	w.t.Cleanup(func() { _ = session.Close() })
	return &assistant{w.t, session, cmd.Process}
}

// call calls a tool, and returns the text of its answer. It requires that the tool fails if the text of the error is
// given, and otherwise that it does not.
func (a *assistant) call(failure, tool string, arguments map[string]any) string {
	a.t.Helper()
	result, err := a.session.CallTool(a.t.Context(), &mcp.CallToolParams{Name: tool, Arguments: arguments})
	must(a.t, err)
	text := result.Content[0].(*mcp.TextContent).Text
	if result.IsError != (failure != "") || !strings.Contains(text, failure) {
		a.t.Fatalf("%s %v: error %t %q, want %q", tool, arguments, result.IsError, text, failure)
	}
	return text
}

type args = map[string]any

// TestAssistantsExcludeEachOther: a lock of one connection excludes another connection and a run, is listed, and ends
// with unlock, with the connection, and with the process.
func TestAssistantsExcludeEachOther(t *testing.T) {
	w := withStore(t)
	a, b := w.assistant(), w.assistant()
	a.call("", "lock", args{"name": "x", "reason": "edits x.go"})
	a.call("", "lock", args{"name": "x"}) // it holds the lock already
	b.call("held by", "lock", args{"name": "x"})
	b.call("does not hold", "unlock", args{"name": "x"})
	if got := w.run("run", "--try", "x", "--", "true"); got.status != 75 {
		t.Errorf("status %d: %s", got.status, got.stderr)
	}
	if got := b.call("", "list", args{"prefix": "x"}); !strings.Contains(got, "edits x.go") {
		t.Errorf("the list has no reason: %s", got)
	}
	a.call("", "unlock", args{"name": "x"})
	b.call("", "lock", args{"name": "x", "wait": 60})
	must(t, b.session.Close())
	a.call("", "lock", args{"name": "x", "wait": 60})
	must(t, a.process.Kill())
	w.assistant().call("", "lock", args{"name": "x", "wait": 60})
}

// TestAssistantIsNotifiedOfALoss: the next answer names a lock that was taken away, and the name can be locked again.
func TestAssistantIsNotifiedOfALoss(t *testing.T) {
	w := withStore(t)
	a := w.assistant()
	var granted struct{ Token string }
	must(t, json.Unmarshal([]byte(a.call("", "lock", args{"name": "x"})), &granted))
	if got := w.run("break", "--token", granted.Token, "x"); got.status != 0 {
		t.Fatalf("break: status %d: %s", got.status, got.stderr)
	}
	a.call("does not hold", "unlock", args{"name": "x"})
	if got := a.call("", "list", nil); !strings.Contains(got, `"lost":["x"]`) {
		t.Errorf("list: %s", got)
	}
	a.call("", "lock", args{"name": "x"})
}

// TestAssistantsInputIsChecked: a bad input is refused before any I/O.
func TestAssistantsInputIsChecked(t *testing.T) {
	a := withStore(t).assistant()
	a.call("0 to 86400", "lock", args{"name": "x", "wait": -1})
	a.call("name", "lock", args{"name": ""})
	a.call("Reason is 600 bytes long", "lock", args{"name": "x", "reason": strings.Repeat("x", 600)})
	a.call("name", "lock", nil)
}

// TestCancelledCallHoldsNothing: an assistant cancels a call that waits. The lock is free after its holder.
func TestCancelledCallHoldsNothing(t *testing.T) {
	w := withStore(t)
	a, b := w.assistant(), w.assistant()
	a.call("", "lock", args{"name": "x"})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		_, err := b.session.CallTool(ctx, &mcp.CallToolParams{Name: "lock", Arguments: args{"name": "x", "wait": 3600, "reason": "waits"}})
		ended <- err
	}()
	for !strings.Contains(a.call("", "list", nil), `"reason":"waits"`) {
	}
	cancel()
	if err := <-ended; err == nil {
		t.Error("a cancelled call has an answer")
	}
	for strings.Contains(a.call("", "list", nil), `"reason":"waits"`) {
	}
	a.call("", "unlock", args{"name": "x"})
	if got := w.run("run", "--try", "x", "--", "true"); got.status != 0 {
		t.Errorf("status %d: %s", got.status, got.stderr)
	}
}
