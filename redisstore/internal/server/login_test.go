package server

import (
	"context"
	"io"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast/internal/backoff"
)

// TestLoginWithoutAnswerLeavesRefusal: a login that has no answer is not a refusal, and ends none. The time is not real,
// so the server is not, either.
func TestLoginWithoutAnswerLeavesRefusal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		answer, connections := "", 0
		l := &login{user: "app", password: func() string { return "secret" }}
		dial := l.after(func(context.Context, string, string) (net.Conn, error) {
			connections++
			client, server := net.Pipe()
			go func() {
				_, _ = server.Read(make([]byte, 1024))
				_, _ = io.WriteString(server, answer)
				_ = server.Close()
			}()
			return client, nil
		})
		const refusal, pause = "WRONGPASS", backoff.RefusedPause
		for i, c := range []struct {
			after  time.Duration
			answer string // "" if the connection ends without one
			sent   bool
			want   string // in the error
		}{
			{0, "", true, io.EOF.Error()},
			{0, "", true, io.EOF.Error()}, // at once, since the first one was not refused
			{0, "-WRONGPASS invalid username-password pair\r\n", true, refusal},
			{0, "+OK\r\n", false, refusal},
			{pause, "", true, io.EOF.Error()},
			{0, "+OK\r\n", false, refusal},
			{pause, "+OK\r\n", true, ""},
			{0, "", true, io.EOF.Error()},
			{0, "+OK\r\n", true, ""},
		} {
			time.Sleep(c.after)
			answer = c.answer
			before := connections
			conn, err := dial(t.Context(), "tcp", "server:6379")
			if err == nil {
				err = conn.Close()
			}
			if sent := connections > before; sent != c.sent || (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
				t.Errorf("login %d: sent %t, %v; want %t and %q", i, sent, err, c.sent, c.want)
			}
		}
	})
}
