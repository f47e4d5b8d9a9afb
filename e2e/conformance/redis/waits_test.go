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

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/servers"
	"github.com/holdfast-go/holdfast/redisstore"
)

// nameKey returns the key of the only name that has a holder, a queue entry or a tombstone.
func nameKey(t *testing.T, r *servers.Redis) string {
	t.Helper()
	keys, _ := do(t, r, "KEYS", "holdfast:{???}:*").([]any)
	if len(keys) != 1 {
		t.Fatalf("keys %q, want one", keys)
	}
	return keys[0].(string)
}

// TestWaiterNotifiedNearHeadAfterCancels: the waiters before a queue entry are cancelled, so the entry
// comes near the head. The server notifies its client, as it does after grants. The client then learns
// when the holder's lease ends, and does not sleep as long as a client far behind.
func TestWaiterNotifiedNearHeadAfterCancels(t *testing.T) {
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
	eventually(t, "all waiters have a queue entry", func() bool {
		st, err := a.Inspect(t.Context(), "x")
		return err == nil && len(st.Waiters) == many
	})
	q := request("x", driver.Exclusive, long)
	w := queue(t, c, q)
	entry, _ := do(t, r, "HGET", key, "q"+strconv.Itoa(many+1)).(string)
	part := strings.Split(entry, " ")
	if len(part) < 6 || part[0] != q.ID {
		t.Fatalf("the queue entry is %q", entry)
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
		case <-w.Done:
			t.Fatal("granted beside the holder")
		case <-time.After(testTimeout):
			t.Fatal("the client is not notified that its entry is near the head")
		}
	}
}

// TestWaiterGrantedOnFullServer: the server's memory runs out while a client waits. The client refreshes
// its entry and is granted, also where the holder's lease is longer than its own.
func TestWaiterGrantedOnFullServer(t *testing.T) {
	t.Parallel()
	for _, ttl := range []time.Duration{long, long / 3} {
		t.Run(ttl.String(), func(t *testing.T) {
			r := start(t)
			s, other := open(t, "redis://"+r.Address()), open(t, "redis://"+r.Address())
			g := must(t, s, request("x", driver.Exclusive, long))
			w := queue(t, other, request("x", driver.Exclusive, ttl))
			do(t, r, "CONFIG", "SET", "maxmemory", "1")
			before := calls(t, r, "evalsha")
			eventually(t, "the client refreshes its queue entry", func() bool {
				w.Pending()
				return calls(t, r, "evalsha") >= before+6
			})
			check(t, s.Release(t.Context(), g, 0))
			release(t, other, w.Granted())
		})
	}
}

// TestWaitedTokenAboveHighWaterMark: the token of a waiter's grant is above every token that its client
// has seen. That holds also if the server's clock passes the largest of them between the grant and its
// confirmation.
func TestWaitedTokenAboveHighWaterMark(t *testing.T) {
	r := start(t)
	micros := func() int64 {
		all, _ := do(t, r, "TIME").([]any)
		s, err1 := strconv.ParseInt(all[0].(string), 10, 64)
		us, err2 := strconv.ParseInt(all[1].(string), 10, 64)
		check(t, errors.Join(err1, err2))
		return s*1_000_000 + us
	}
	gate := newGate(t, r.Address())
	a, b := open(t, "redis://"+r.Address()), open(t, "redis://"+gate.Address())
	release(t, a, must(t, a, request("warm", driver.Exclusive, long)))
	release(t, b, must(t, b, request("warm", driver.Exclusive, long)))
	for range 10 {
		// b has seen a token ahead of the server's clock, and the server forgets it.
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
		late := micros() >= int64(high.Token) // the clock alone gives a larger token, so this round shows nothing
		for micros() <= int64(high.Token) {
			time.Sleep(10 * time.Millisecond)
		}
		gate.release()
		next := w.Granted()
		if next.Token <= high.Token {
			t.Errorf("token %d after %d", next.Token, high.Token)
		}
		release(t, b, next)
		if !late {
			return
		}
	}
}

// TestTombstoneKeyExpiresSoon: a key with tombstones alone lives as long as they do, and not as long as
// the lease of the earlier grant.
func TestTombstoneKeyExpiresSoon(t *testing.T) {
	r := start(t)
	s := open(t, "redis://"+r.Address())
	short := func(when string) {
		t.Helper()
		if left, _ := do(t, r, "PTTL", nameKey(t, r)).(int64); left <= 0 || left > time.Minute.Milliseconds() {
			t.Errorf("%s the key expires in %d ms", when, left)
		}
	}
	for _, limit := range []int{driver.Exclusive, 3} {
		g := must(t, s, request("x", limit, 10*time.Hour))
		check(t, s.Break(t.Context(), "x", g.Token))
		short("after a break")
		q := request("x", limit, 10*time.Hour)
		must(t, s, q)
		check(t, s.Undo(t.Context(), q))
		short("after an undo")
	}
}

// plain is a client that can keep one request back: the store gets an error, and the test may send that request
// later. It receives no messages.
type plain struct {
	redisstore.Client
	hold func(s *redisstore.Script, args []string) bool // reports whether to hold back this request
	mu   sync.Mutex
	kept []string // the command that was held back
}

func newPlain(t testing.TB, r *servers.Redis) *plain {
	t.Helper()
	return &plain{Client: open(t, "redis://"+r.Address()).Client()}
}

func strungTogether(v any) (all []string) {
	if parts, ok := v.([]any); ok {
		for _, x := range parts {
			all = append(all, strungTogether(x)...)
		}
		return all
	}
	return []string{fmt.Sprint(v)}
}

func (p *plain) Eval(ctx context.Context, s *redisstore.Script, keys, args []string) ([]string, error) {
	p.mu.Lock()
	if p.hold != nil && p.hold(s, args) {
		p.kept, p.hold = append(append([]string{"EVAL", s.Source, strconv.Itoa(len(keys))}, keys...), args...), nil
		p.mu.Unlock()
		return nil, errNoAnswer
	}
	p.mu.Unlock()
	return p.Client.Eval(ctx, s, keys, args)
}

func (p *plain) EvalAll(ctx context.Context, s *redisstore.Script, calls []redisstore.Call) []redisstore.Answer {
	all := make([]redisstore.Answer, len(calls))
	for i, c := range calls {
		all[i].Values, all[i].Err = p.Eval(ctx, s, c.Keys, c.Args)
	}
	return all
}

func (p *plain) Subscribe(ctx context.Context, _ string, ready func(), _ func(string)) error {
	ready()
	<-ctx.Done()
	return ctx.Err()
}

func (p *plain) SubscribeSharded(ctx context.Context, channel string, ready func(), got func(string)) error {
	return p.Subscribe(ctx, channel, ready, got)
}

// lateRequest returns a store, the grant of its waiter, and the command of an earlier request of the
// same waiter. The store had no answer to that request, and the server does not have it yet.
func lateRequest(t *testing.T, r *servers.Redis, over func(redisstore.Client) (store, error)) (s store, g driver.Grant, command []string) {
	t.Helper()
	p := newPlain(t, r)
	s, err := over(p)
	check(t, err)
	t.Cleanup(func() { _ = s.Close(context.Background()) })
	other, err := over(newPlain(t, r))
	check(t, err)
	t.Cleanup(func() { _ = other.Close(context.Background()) })
	must(t, other, request("x", driver.Exclusive, long))
	w := queue(t, s, request("x", driver.Exclusive, long))
	p.mu.Lock()
	p.hold = func(sc *redisstore.Script, args []string) bool { // requests a queue entry again
		return sc.Name == "acquire" && len(args) >= 7 && args[6] == "0" || strings.HasSuffix(sc.Name, " acquire")
	}
	p.mu.Unlock()
	do(t, r, "FLUSHALL")
	g = w.Granted()
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.kept == nil {
		t.Fatal("no request was held back")
	}
	return s, g, p.kept
}

// TestLateRequestAfterReleaseIsRefused: a later request with the same ID was granted, and that grant was
// lost and released. The server refuses the late request.
func TestLateRequestAfterReleaseIsRefused(t *testing.T) {
	r := start(t)
	s, g, late := lateRequest(t, r, overNative)
	do(t, r, "FLUSHALL")
	code(t, s, s.Release(t.Context(), g, 0), driver.CodeNotHeld)
	if answer := strungTogether(do(t, r, late...)); answer[0] != "V" {
		t.Errorf("the answer to the late request is %q", answer)
	}
	other := open(t, "redis://"+r.Address())
	release(t, other, must(t, other, request("x", driver.Exclusive, long)))
}

// TestLateRequestAfterReleaseThatKeepsIsRefused: the release keeps the lease for a while. The late
// request makes no queue entry.
func TestLateRequestAfterReleaseThatKeepsIsRefused(t *testing.T) {
	r := start(t)
	s, g, late := lateRequest(t, r, overNative)
	check(t, s.Release(t.Context(), g, long))
	if answer := strungTogether(do(t, r, late...)); answer[0] != "V" {
		t.Errorf("the answer to the late request is %q", answer)
	}
}
