//go:build linux || darwin

package main_test

import (
	"context"
	"testing"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/check/servers"
	_ "github.com/holdfast-go/holdfast/redisstore"
)

// startRedis starts a Redis for a test, and returns its URL.
func startRedis(t *testing.T) string {
	t.Helper()
	if _, err := servers.Find("redis-server"); err != nil {
		missing(t, "redis-server")
	}
	server, err := servers.StartRedis(t.Context(), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = server.Stop() })
	return "redis://" + server.Address()
}

// TestCommandAfterAWaiterIsNotEnded: the second run waits for the first, and the third for the second. On
// Redis, the third may start its command before it has confirmed its grant. The command still has the
// whole validity, which is longer than the grace, so the run does not end it.
func TestCommandAfterAWaiterIsNotEnded(t *testing.T) {
	t.Parallel()
	url := startRedis(t)
	l, err := holdfast.Open(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close(context.Background()) })
	w := newSandbox(t)
	begin := func(script string) *process {
		return w.start("run", "--store", url, "x", "--", "sh", "-c", script)
	}
	first := begin("echo held; read line")
	first.stdout.expect("held")
	second := begin("echo held; read line")
	awaitQueue(t, l, 1)
	third := begin("sleep 0.3; echo done")
	awaitQueue(t, l, 2)
	first.send("end")
	second.stdout.expect("held")
	second.send("end")
	third.stdout.expect("done")
	for _, p := range []*process{first, second, third} {
		if status := p.status(); status != 0 {
			t.Errorf("status %d", status)
		}
	}
}
