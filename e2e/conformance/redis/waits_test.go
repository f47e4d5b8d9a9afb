package redis

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/holdfast-go/holdfast/check/servers"
	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/redisstore"
)

// nameKey is the key of the only name that is held, awaited or remembered.
func nameKey(t *testing.T, r *servers.Redis) string {
	t.Helper()
	keys, _ := do(t, r, "KEYS", "holdfast:{???}:*").([]any)
	if len(keys) != 1 {
		t.Fatalf("keys %q, want one", keys)
	}
	return keys[0].(string)
}

// TestNearByCancels: a place that comes near the head because those before it gave up is
// told so, as one is that comes near by their grants. It learns then when the holder's
// lease ends, and need not sleep on as a place far behind does.
func TestNearByCancels(t *testing.T) {
	r := start(t)
	a, b, c := open(t, "redis://"+r.Address()), open(t, "redis://"+r.Address()), open(t, "redis://"+r.Address())
	must(t, a, request("x", driver.Exclusive, long))
	key := nameKey(t, r)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var before sync.WaitGroup
	const many = 50
	for range many {
		q := request("x", driver.Exclusive, long)
		q.Wait = true
		before.Go(func() {
			if _, err := b.Acquire(ctx, q); err == nil {
				t.Error("granted beside the holder")
			}
		})
	}
	for end := time.Now().Add(testTimeout); ; time.Sleep(5 * time.Millisecond) {
		if st, err := a.Inspect(t.Context(), "x"); err == nil && len(st.Waiters) == many {
			break
		}
		if time.Now().After(end) {
			t.Fatal("not all have a place")
		}
	}
	q := request("x", driver.Exclusive, long)
	w := queue(t, c, q)
	place, _ := do(t, r, "HGET", key, "q"+strconv.Itoa(many+1)).(string)
	part := strings.Split(place, " ")
	if len(part) < 6 || part[0] != q.ID {
		t.Fatalf("the place is %q", place)
	}
	client := goredis.NewClient(&goredis.Options{Addr: r.Address()})
	defer client.Close()
	sub := client.Subscribe(t.Context(), strings.TrimPrefix(part[5], "p:"))
	defer sub.Close()
	if _, err := sub.Receive(t.Context()); err != nil {
		t.Fatal(err)
	}
	cancel()
	for messages := sub.Channel(); ; {
		select {
		case m := <-messages:
			if m.Payload == "n"+q.ID {
				before.Wait()
				return
			}
		case <-w.done:
			t.Fatal("granted beside the holder")
		case <-time.After(testTimeout):
			t.Fatal("it is not told that it is near")
		}
	}
}

// TestFullWhileWaiting: those who wait when the server's memory runs out go on waiting,
// through their refreshes, and are granted, also where the holder's lease is longer.
func TestFullWhileWaiting(t *testing.T) {
	for _, ttl := range []time.Duration{long, long / 3} {
		t.Run(ttl.String(), func(t *testing.T) {
			r := start(t)
			s, other := open(t, "redis://"+r.Address()), open(t, "redis://"+r.Address())
			g := must(t, s, request("x", driver.Exclusive, long))
			w := queue(t, other, request("x", driver.Exclusive, ttl))
			do(t, r, "CONFIG", "SET", "maxmemory", "1")
			before := calls(t, r, "evalsha")
			for end := time.Now().Add(testTimeout); calls(t, r, "evalsha") < before+6; time.Sleep(20 * time.Millisecond) {
				select {
				case <-w.done:
					t.Fatalf("it waits no longer: %v", w.err)
				default:
				}
				if time.Now().After(end) {
					t.Fatal("nobody refreshes anything")
				}
			}
			if err := s.Release(t.Context(), g, 0); err != nil {
				t.Fatal(err)
			}
			release(t, other, w.granted())
		})
	}
}

// TestConfirmedAboveFloor: the token of a place that was granted is above all that its
// client has seen, also where the server's clock has passed that between the grant and
// its confirmation.
func TestConfirmedAboveFloor(t *testing.T) {
	r := start(t)
	micros := func() int64 {
		all, _ := do(t, r, "TIME").([]any)
		s, err1 := strconv.ParseInt(all[0].(string), 10, 64)
		us, err2 := strconv.ParseInt(all[1].(string), 10, 64)
		if err := errors.Join(err1, err2); err != nil {
			t.Fatal(err)
		}
		return s*1_000_000 + us
	}
	gate := newGate(t, r.Address())
	a, b := open(t, "redis://"+r.Address()), open(t, "redis://"+gate.Address())
	release(t, a, must(t, a, request("warm", driver.Exclusive, long)))
	release(t, b, must(t, b, request("warm", driver.Exclusive, long)))
	for range 10 {
		// The server forgets a token that is ahead of its clock, which b has seen.
		release(t, a, must(t, a, request("x", driver.Exclusive, long)))
		keys, _ := do(t, r, "KEYS", "holdfast:{???}").([]any)
		for _, k := range keys {
			do(t, r, "SET", k.(string), fmt.Sprint(micros()+1_500_000))
		}
		high := must(t, b, request("x", driver.Exclusive, long))
		release(t, b, high)
		for _, k := range keys {
			do(t, r, "DEL", k.(string))
		}
		held := must(t, a, request("x", driver.Exclusive, long))
		w := queue(t, b, request("x", driver.Exclusive, long))
		gate.hold()
		release(t, a, held)
		late := micros() >= int64(high.Token) // too slow a machine: it is granted above it anyhow
		for micros() <= int64(high.Token) {
			time.Sleep(10 * time.Millisecond)
		}
		gate.release()
		next := w.granted()
		if next.Token <= high.Token {
			t.Errorf("token %d after %d", next.Token, high.Token)
		}
		release(t, b, next)
		if !late {
			return
		}
	}
}

// TestVoidMemoryEnds: what remembers that an ID is void lives as long as that takes, and
// not as long as the lease of the grant that was there.
func TestVoidMemoryEnds(t *testing.T) {
	r := start(t)
	s := open(t, "redis://"+r.Address())
	short := func(when string) {
		t.Helper()
		if left, _ := do(t, r, "PTTL", nameKey(t, r)).(int64); left <= 0 || left > time.Minute.Milliseconds() {
			t.Errorf("%s its key lives for %d ms more", when, left)
		}
	}
	for _, limit := range []int{driver.Exclusive, 3} {
		g := must(t, s, request("x", limit, 10*time.Hour))
		if err := s.Break(t.Context(), "x", g.Token); err != nil {
			t.Fatal(err)
		}
		short("after a break")
		q := request("x", limit, 10*time.Hour)
		must(t, s, q)
		if err := s.Undo(t.Context(), q); err != nil {
			t.Fatal(err)
		}
		short("after an undo")
	}
}

// plain is a client that sends one command after another, and holds back what a test
// says: such a request is lost to the store, and may arrive later.
type plain struct {
	r    *servers.Redis
	hold func(s *redisstore.Script, args []string) bool
	mu   sync.Mutex
	kept []string // the command
}

func (p *plain) String() string        { return "redis://" + p.r.Address() }
func (p *plain) Mode() redisstore.Mode { return redisstore.Standalone }
func (p *plain) Close()                {}

func strungTogether(v any) (all []string) {
	if parts, ok := v.([]any); ok {
		for _, x := range parts {
			all = append(all, strungTogether(x)...)
		}
		return all
	}
	return []string{fmt.Sprint(v)}
}

func (p *plain) Command(ctx context.Context, args ...string) ([]string, error) {
	v, err := p.r.Do(ctx, args...)
	if err != nil {
		return nil, err
	}
	return strungTogether(v), nil
}

func (p *plain) Eval(ctx context.Context, s *redisstore.Script, keys, args []string) ([]string, error) {
	command := append(append([]string{"EVAL", s.Source, strconv.Itoa(len(keys))}, keys...), args...)
	p.mu.Lock()
	if p.hold != nil && p.hold(s, args) {
		p.kept, p.hold = command, nil
		p.mu.Unlock()
		return nil, errors.New("no answer")
	}
	p.mu.Unlock()
	return p.Command(ctx, command...)
}

func (p *plain) EvalAll(ctx context.Context, s *redisstore.Script, calls []redisstore.Call) []redisstore.Answer {
	all := make([]redisstore.Answer, len(calls))
	for i, c := range calls {
		all[i].Values, all[i].Err = p.Eval(ctx, s, c.Keys, c.Args)
	}
	return all
}

func (p *plain) EvalAcked(context.Context, *redisstore.Script, []string, []string, string, int, time.Duration) ([]string, int, error) {
	return nil, 0, errors.New("not here")
}

func (p *plain) EachPrimary(_ context.Context, f func(redisstore.Node) error) error { return f(p) }

func (p *plain) Replica(context.Context, string) (redisstore.Node, error) { return p, nil }

func (p *plain) Subscribe(ctx context.Context, _ string, ready func(), _ func(string)) error {
	ready()
	<-ctx.Done()
	return ctx.Err()
}

// lateRequest returns a grant to a waiter of s, and the command of an earlier request of
// the same waiter, which was sent, was not answered, and has not arrived.
func lateRequest(t *testing.T, r *servers.Redis, o ...redisstore.Option) (s *redisstore.Store, g driver.Grant, command []string) {
	t.Helper()
	p := &plain{r: r}
	s, err := redisstore.New(p, o...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close(context.Background()) })
	must(t, open(t, "redis://"+r.Address(), o...), request("x", driver.Exclusive, long))
	w := queue(t, s, request("x", driver.Exclusive, long))
	p.mu.Lock()
	p.hold = func(sc *redisstore.Script, args []string) bool { // requests a queue entry anew
		return sc.Name == "acquire" && len(args) >= 7 && args[6] == "0" || strings.HasSuffix(sc.Name, " acquire")
	}
	p.mu.Unlock()
	do(t, r, "FLUSHALL")
	g = w.granted()
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.kept == nil {
		t.Fatal("no request was held back")
	}
	return s, g, p.kept
}

// TestLateAfterRelease: a request that was sent, was not answered, and arrives after the
// grant of a later request with its ID was lost and released, is not granted.
func TestLateAfterRelease(t *testing.T) {
	r := start(t)
	s, g, late := lateRequest(t, r)
	do(t, r, "FLUSHALL")
	code(t, s, s.Release(t.Context(), g, 0), driver.CodeNotHeld)
	if answer := strungTogether(do(t, r, late...)); answer[0] != "V" {
		t.Errorf("the late request is answered %q", answer)
	}
	other := open(t, "redis://"+r.Address())
	release(t, other, must(t, other, request("x", driver.Exclusive, long)))
}

// TestLateAfterReleaseThatKeeps: the same where the release leaves the lease standing for
// a while. The late request makes no queue entry.
func TestLateAfterReleaseThatKeeps(t *testing.T) {
	r := start(t)
	s, g, late := lateRequest(t, r)
	if err := s.Release(t.Context(), g, long); err != nil {
		t.Fatal(err)
	}
	if answer := strungTogether(do(t, r, late...)); answer[0] != "V" {
		t.Errorf("the late request is answered %q", answer)
	}
}
