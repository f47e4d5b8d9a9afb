//go:build linux

// Package gateway tests the clients of other languages through holdfast serve, beside clients in Go.
package gateway

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/e2e/interop/register"
	"github.com/holdfast-go/holdfast/e2e/servertest"
	"github.com/holdfast-go/holdfast/internal/must"
	"github.com/holdfast-go/holdfast/internal/servers"
	_ "github.com/holdfast-go/holdfast/redisstore"
)

// testTimeout limits every wait for an event that must happen.
const testTimeout = 2 * time.Minute

// gateway is a server of holdfast serve over Redis.
type gateway struct {
	*servers.Gateway
	store string
}

func start(t *testing.T) *gateway {
	t.Helper()
	r, err := servers.StartRedis(t.Context(), t.TempDir())
	servertest.Started(t, err)
	t.Cleanup(r.Kill)
	program := filepath.Join(t.TempDir(), "holdfast")
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-o", program, "github.com/holdfast-go/holdfast/cmd/holdfast").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	g := &gateway{store: "redis://" + r.Address()}
	g.Gateway, err = servers.StartGateway(t.Context(), t.TempDir(), program, g.store)
	servertest.Check(t, err)
	t.Cleanup(g.Kill)
	return g
}

func (g *gateway) locker(t *testing.T) *holdfast.Locker {
	t.Helper()
	l, err := holdfast.Open(t.Context(), g.store)
	servertest.Check(t, err)
	t.Cleanup(func() { servertest.Check(t, l.Close(context.Background())) })
	return l
}

// peer is a process of another language.
type peer struct {
	t     *testing.T
	cmd   *exec.Cmd
	in    io.Writer
	lines chan string
}

// languages are the commands of the peers.
var languages = map[string][]string{
	"python":     {"python3", "peer.py", "../../../clients/python"},
	"typescript": {"node", "peer.mjs", "../../../clients/typescript"},
}

func (g *gateway) peer(t *testing.T, language string) *peer {
	t.Helper()
	command := languages[language]
	program, err := servers.Find(command[0])
	servertest.Started(t, err)
	cmd := exec.Command(program, append(command[1:], "http://"+g.Address)...)
	in, err := cmd.StdinPipe()
	servertest.Check(t, err)
	out, err := cmd.StdoutPipe()
	servertest.Check(t, err)
	cmd.Stderr = t.Output()
	servertest.Check(t, cmd.Start())
	p := &peer{t, cmd, in, make(chan string, 10_000)}
	go func() {
		defer close(p.lines)
		for s := bufio.NewScanner(out); s.Scan(); {
			p.lines <- s.Text()
		}
	}()
	t.Cleanup(p.kill)
	p.expect("ready")
	return p
}

func (p *peer) kill() {
	_ = p.cmd.Process.Kill()
	_ = p.cmd.Wait()
}

func (p *peer) send(words ...any) {
	p.t.Helper()
	_, err := fmt.Fprintln(p.in, words...)
	servertest.Check(p.t, err)
}

// expect returns the rest of the next line, which begins with a word.
func (p *peer) expect(word string) string {
	p.t.Helper()
	select {
	case line, ok := <-p.lines:
		rest, found := strings.CutPrefix(line, word)
		if !ok || !found {
			p.t.Fatalf("%q, want %s", line, word)
		}
		return strings.TrimSpace(rest)
	case <-time.After(testTimeout):
		p.t.Fatalf("no line %s", word)
	}
	return ""
}

// do sends a command and returns its result.
func (p *peer) do(words ...any) string {
	p.t.Helper()
	p.send(words...)
	return p.expect(fmt.Sprint(words[0]))
}

// TestClientHoldsLocks: the client holds, is excluded and excludes, notices a break, and releases.
func TestClientHoldsLocks(t *testing.T) {
	g := start(t)
	for language := range languages {
		t.Run(language, func(t *testing.T) { holdsLocks(t, g, language) })
	}
}

func holdsLocks(t *testing.T, g *gateway, language string) {
	p, l := g.peer(t, language), g.locker(t)
	ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
	defer cancel()
	token, _, _ := strings.Cut(p.do("hold", "a/b", 30), " ")
	k, err := l.TryLock(ctx, "a/b")
	if err == nil {
		_ = k.Unlock()
		t.Fatal("the name is free while the client holds it")
	}
	if got := p.do("try", "a/b"); got != "busy 1" {
		t.Errorf("try of a held name: %s", got)
	}
	if got := p.do("names", "a/"); got != "a/b" {
		t.Errorf("names: %s", got)
	}
	if got := p.do("check", "a/b"); got != "held" {
		t.Errorf("check: %s", got)
	}
	if got := p.do("release", "a/b"); got != "ok" {
		t.Errorf("release: %s", got)
	}
	k, err = l.TryLock(ctx, "a/b")
	servertest.Check(t, err)
	if before, err := strconv.ParseUint(token, 10, 64); err != nil || before >= k.Token() {
		t.Errorf("token %s, then %d", token, k.Token())
	}
	servertest.Check(t, k.Unlock())

	p.do("hold", "c", 30)
	p.send("break", "c")
	if first, second := p.expect(""), p.expect(""); first != "lost taken" && second != "lost taken" {
		t.Errorf("after a break: %s, %s", first, second)
	}
	if got := p.do("check", "c"); got != "lost taken 0" {
		t.Errorf("check after a break: %s", got)
	}
	if got := p.do("release", "c"); got != "lost taken" {
		t.Errorf("release after a break: %s", got)
	}
	if got := p.do("guard", language, 7); got != "ok" {
		t.Errorf("guard: %s", got)
	}
	if got := p.do("guard", language, 6); got != "stale" {
		t.Errorf("guard of an older token: %s", got)
	}
	if a, b := p.do("next", "s"), p.do("next", "s"); a == b {
		t.Errorf("the id %s twice", a)
	}
}

// TestClientNoticesADeadGateway: the lock counts as lost when no line comes in its validity, which is short for each
// TTL, and a wait without lines fails. A client that is killed frees its lock.
func TestClientNoticesADeadGateway(t *testing.T) {
	g := start(t)
	l := g.locker(t)
	ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
	defer cancel()
	holders, waiters := map[string]*peer{}, map[string]*peer{}
	for language := range languages {
		p, waiter := g.peer(t, language), g.peer(t, language)
		p.do("hold", "short-"+language, 5)
		p.do("hold", "long-"+language, 3600)
		waiter.send("hold", "long-"+language, 5)
		holders[language], waiters[language] = p, waiter
		for st, err := range l.Watch(ctx, "long-"+language) {
			servertest.Check(t, err)
			if len(st.Waiters) > 0 {
				break
			}
		}
	}
	servertest.Check(t, g.Pause()) // the connections are open, and no line comes
	for language, p := range holders {
		p.expect("lost expired")
		p.expect("lost expired") // a server that is reachable again later may have released this one, too
		if got := waiters[language].expect("hold"); got != "unavailable" {
			t.Errorf("%s: a wait: %s", language, got)
		}
	}
	servertest.Check(t, g.Restart(ctx))
	for language, p := range holders {
		for _, name := range []string{"short-" + language, "killed-" + language} {
			if strings.HasPrefix(name, "killed") {
				p.do("hold", name, 3600)
				p.kill()
			}
			k, err := l.Lock(ctx, name)
			servertest.Check(t, err)
			servertest.Check(t, k.Unlock())
		}
	}
}

// TestCounterIsExactUnderKills: clients in Python, TypeScript and Go add to one number. Clients and the gateway are
// killed. No value is written twice.
func TestCounterIsExactUnderKills(t *testing.T) {
	g := start(t)
	r, l := register.New(t), g.locker(t)
	ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
	defer cancel()
	var mu sync.Mutex
	written := map[int]string{}
	wrote := func(n int, by string) {
		mu.Lock()
		defer mu.Unlock()
		if other := written[n]; other != "" {
			t.Errorf("%d was written by %s and by %s", n, other, by)
		}
		written[n] = by
	}
	var all sync.WaitGroup
	follow := func(p *peer, by string) {
		all.Go(func() {
			for line := range p.lines {
				if words := strings.Fields(line); words[0] == "counted" {
					n, err := strconv.Atoi(words[1])
					must.Report(t, err)
					wrote(n, by)
				} else if words[0] == "count" {
					return
				}
			}
		})
	}
	const times = 150
	kills := 0
	for language := range languages {
		p := g.peer(t, language)
		p.send("count", string(r), times)
		follow(p, language)
	}
	all.Go(func() {
		for range times {
			err := l.Do(ctx, "counter", func(context.Context) error {
				if err := r.Add(); err != nil {
					return err
				}
				n, err := r.Value()
				wrote(n, "go")
				return err
			}, holdfast.TTL(2*time.Second))
			if err != nil {
				t.Error(err)
				return
			}
		}
	})
	for i := range 4 { // these are killed
		p := g.peer(t, []string{"python", "typescript"}[i%2])
		p.send("count", string(r), 1<<20)
		for range 5 {
			wrote(next(t, p), fmt.Sprint("victim ", i))
		}
		p.kill()
		kills++
		follow(p, fmt.Sprint("victim ", i))
		if i == 1 {
			servertest.Check(t, g.Restart(ctx))
			kills++ // a write whose release found no gateway is not an error, but its line may be missing
		}
	}
	all.Wait()
	n, err := r.Value()
	servertest.Check(t, err)
	if missing := n - len(written); missing < 0 || missing > kills {
		t.Errorf("the number is %d after %d writes that were reported and %d kills", n, len(written), kills)
	}
	t.Logf("%d writes, %d reported, %d kills", n, len(written), kills)
}

// next returns the next value that a peer has counted.
func next(t *testing.T, p *peer) int {
	t.Helper()
	for {
		line := p.expect("")
		if words := strings.Fields(line); words[0] == "counted" {
			n, err := strconv.Atoi(words[1])
			servertest.Check(t, err)
			return n
		}
	}
}
