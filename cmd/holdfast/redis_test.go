//go:build linux || darwin

package main_test

import (
	"context"
	"strings"
	"testing"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/internal/servers"
	"github.com/holdfast-go/holdfast/redisstore"
)

// startRedis starts a Redis for a test, and returns its URL.
func startRedis(t *testing.T) string { return "redis://" + startServer(t).Address() }

func startServer(t *testing.T) *servers.Redis {
	t.Helper()
	if _, err := servers.Find("redis-server"); err != nil {
		missing(t, "redis-server")
	}
	server, err := servers.StartRedis(t.Context(), t.TempDir())
	must(t, err)
	t.Cleanup(func() { _ = server.Stop() })
	return server
}

// TestListContinuesAfterBrokenRecord: another program has written to the key of a name. Ls shows that
// in a row of its own, lists the other names, and ends with status 78. Show and run name the key.
func TestListContinuesAfterBrokenRecord(t *testing.T) {
	t.Parallel()
	server := startServer(t)
	url := "redis://" + server.Address()
	l, err := holdfast.Open(t.Context(), url)
	must(t, err)
	t.Cleanup(func() { _ = l.Close(context.Background()) })
	for _, name := range []string{"a", "c"} {
		k := mustLock(t, l, name)
		t.Cleanup(func() { _ = k.Unlock() })
	}
	key := redisstore.Key("", "b")
	if _, err := server.Do(t.Context(), "SET", key, "a text"); err != nil {
		t.Fatal(err)
	}
	w := newSandbox(t)
	for _, c := range []struct {
		args []string
		want []string
	}{
		{[]string{"ls"}, []string{"a\theld", "b\tbroken", key, "c\theld", "1 of the listed records cannot be read"}},
		{[]string{"ls", "--json"}, []string{`"name": "a"`, `"error": "`, key, `"name": "c"`}},
		{[]string{"show", "b"}, []string{key}},
		{[]string{"run", "--try", "b", "--", "true"}, []string{key}},
		{[]string{"run", "b", "--", "true"}, []string{key}},
	} {
		r := w.run(append([]string{c.args[0], "--store", url}, c.args[1:]...)...)
		if r.status != 78 {
			t.Errorf("%q: status %d", c.args, r.status)
		}
		for _, want := range c.want {
			if !strings.Contains(r.stdout+r.stderr, want) {
				t.Errorf("%q does not print %q:\n%s%s", c.args, want, r.stdout, r.stderr)
			}
		}
	}
}

// TestCommandAfterAWaiterIsNotEnded: the second run waits for the first, and the third for the second. On
// Redis, the third may start its command before it has confirmed its grant. The command still has the
// whole validity, which is longer than the grace, so the run does not end it.
func TestCommandAfterAWaiterIsNotEnded(t *testing.T) {
	t.Parallel()
	url := startRedis(t)
	l, err := holdfast.Open(t.Context(), url)
	must(t, err)
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

// TestStatedWaitOutlastsAnUnreachableStore: the server refuses connections when the run begins, and accepts them
// later. A run with --wait goes on trying, and runs its command. A run without --wait ends at once.
func TestStatedWaitOutlastsAnUnreachableStore(t *testing.T) {
	t.Parallel()
	proxy, err := servers.NewProxy(startServer(t).Address())
	must(t, err)
	t.Cleanup(proxy.Close)
	proxy.Refuse()
	w := newSandbox(t)
	args := []string{"run", "--store", "redis://" + proxy.Address(), "x", "--", "echo", "ran"}
	contains(t, w.run(args...).expectStatus(t, 69).stderr, "connection refused")
	args = append([]string{"run", "--wait", "1s"}, args[1:]...)
	contains(t, w.run(args...).expectStatus(t, 69).stderr, "connection refused", "--wait")
	args[2] = waitLimit().String()
	p := w.start(args...)
	p.stderr.expectPart("trying again")
	must(t, proxy.Heal())
	p.stdout.expect("ran")
	p.expectStatus(0)
}
