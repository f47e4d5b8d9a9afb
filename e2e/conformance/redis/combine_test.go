package redis

import (
	"context"
	"crypto/sha1"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"runtime/pprof"
	"strconv"
	"strings"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/servers"
	"github.com/holdfast-go/holdfast/redisstore"
)

// numbered returns n different names.
func numbered(prefix string, n int) []string {
	names := make([]string, n)
	for i := range names {
		names[i] = fmt.Sprintf("%s-%d", prefix, i)
	}
	return names
}

// app is the part of a URL with the name and the password of the user that restrict creates.
const app = "app:app-secret@"

// singles is the number of requests that a client sends alone before it combines further ones into
// batches.
const singles = 4

// blocked returns how many requests of this process wait for the answer to a batch, and how many for a
// probe of the server.
func blocked(t *testing.T) (inBatches, inProbes int) {
	t.Helper()
	var stacks strings.Builder
	check(t, pprof.Lookup("goroutine").WriteTo(&stacks, 1))
	for group := range strings.SplitSeq(stacks.String(), "\n\n") {
		head, _, _ := strings.Cut(group, " @ ")
		count, err := strconv.Atoi(head[strings.LastIndex(head, "\n")+1:])
		switch {
		case !strings.Contains(group, "/redisstore.(*"):
		case err != nil:
			t.Fatalf("%v in\n%s", err, group)
		case strings.Contains(group, "redisstore.(*batch).wait+"):
			inBatches += count
		case strings.Contains(group, "redisstore.(*Store).requireSafe+"):
			inProbes += count
		}
	}
	return inBatches, inProbes
}

// awaitBatches waits until n requests wait for batches. It returns false if some wait for a probe first.
func awaitBatches(t *testing.T, n int) (waits bool) {
	t.Helper()
	eventually(t, fmt.Sprint(n, " requests wait for batches"), func() bool {
		waiting, probing := blocked(t)
		waits = waiting == n
		return waits || probing > 0
	})
	return waits
}

// combined are requests that a client sends at once, while the server does not answer.
type combined struct {
	t        *testing.T
	requests []driver.Request
	cancel   []context.CancelFunc
	done     []chan struct{}
	grants   []driver.Grant
	errs     []error
}

// link has a connection to a server. A test can hold back the answers on it.
type link struct {
	s, direct     driver.Store // s uses the connection, direct another one
	hold, release func()
}

// submit requests all names at the same time, and holds the answers back. It returns when the client has
// sent the first requests alone, and all others wait for batches.
func (l *link) submit(t *testing.T, names []string) *combined {
	t.Helper()
	for {
		l.hold()
		n := len(names)
		c := &combined{t: t, grants: make([]driver.Grant, n), errs: make([]error, n)}
		for i, name := range names {
			q := request(name, driver.Exclusive, long)
			ctx, cancel := context.WithCancel(t.Context())
			t.Cleanup(cancel)
			done := make(chan struct{})
			c.requests, c.cancel, c.done = append(c.requests, q), append(c.cancel, cancel), append(c.done, done)
			go func() {
				defer close(done)
				c.grants[i], c.errs[i] = l.s.Acquire(ctx, q)
			}()
		}
		if awaitBatches(t, n-singles) {
			return c
		}
		// The client first had to probe the server again. Begin again. An Undo would leave a tombstone, which keeps
		// the next request for the name from being decided in a batch.
		l.release()
		for i, q := range c.requests {
			switch g, err := c.wait(i); {
			case err == nil:
				release(t, l.s, g)
			case l.s.Classify(err) == driver.CodeUnknown:
				undone(t, l.direct, q)
			}
		}
	}
}

// wait returns the result of a request.
func (c *combined) wait(i int) (driver.Grant, error) {
	c.t.Helper()
	select {
	case <-c.done[i]:
	case <-time.After(testTimeout):
		c.t.Fatalf("the request for %q did not return", c.requests[i].Name)
	}
	return c.grants[i], c.errs[i]
}

// resolved undoes all requests, and requires that each name is free.
func (c *combined) resolved(s driver.Store, r *servers.Redis) {
	c.t.Helper()
	for _, q := range c.requests {
		undone(c.t, s, q)
	}
	if left := leftovers(c.t, r); left != nil {
		c.t.Errorf("requests have left %v", left)
	}
}

// gated returns a server, and a link to it through a gate. The store of the link has used its
// connections.
func gated(t *testing.T, user string) (*servers.Redis, *link) {
	t.Helper()
	r := start(t)
	restrict(t, []*servers.Redis{r})
	g := newGate(t, r.Address())
	l := &link{open(t, "redis://"+user+g.Address()), open(t, "redis://"+r.Address()), g.hold, g.release}
	settled(t, r, l.s)
	return r, l
}

func source(t *testing.T, script string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("..", "..", "..", "redisstore", "scripts", script+".lua"))
	check(t, err)
	return string(b)
}

// loaded reports whether a client has sent a batch to the server.
func loaded(t *testing.T, r *servers.Redis) bool {
	t.Helper()
	sum := sha1.Sum([]byte(source(t, "combined")))
	found, _ := do(t, r, "SCRIPT", "EXISTS", hex.EncodeToString(sum[:])).([]any)
	return len(found) == 1 && fmt.Sprint(found[0]) == "1"
}

// TestSerialRequestsAreNotCombined: when callers follow one another, the client sends each request
// alone. When callers come at the same time, the client combines their requests, and each grant has a
// token of its own.
func TestSerialRequestsAreNotCombined(t *testing.T) {
	r, l := gated(t, "")
	pairs(t, l.s, 100)
	if loaded(t, r) {
		t.Fatal("a serial caller has sent a batch")
	}
	c := l.submit(t, numbered("n", 44))
	before := calls(t, r, "evalsha") + calls(t, r, "eval")
	l.release()
	for i := range c.requests {
		if _, err := c.wait(i); err != nil {
			t.Fatal(err)
		}
	}
	if sent := calls(t, r, "evalsha") + calls(t, r, "eval") - before; !loaded(t, r) || sent > len(c.requests)/2 {
		t.Errorf("%d calls for %d requests", sent, len(c.requests))
	}
	for i, q := range c.requests {
		st, err := l.s.(driver.Inspector).Inspect(t.Context(), q.Name)
		if err != nil || len(st.Holders) != 1 || st.Holders[0].ID != q.ID || st.Holders[0].Token != c.grants[i].Token {
			t.Errorf("%s: granted %+v, held by %+v, %v", q.Name, c.grants[i], st, err)
		}
		release(t, l.s, c.grants[i])
	}
}

// TestRefusedRequestInBatchIsAlone: in a batch one name is held, and the key of another has a wrong
// type. For a third name the user may lack the right to the key, and the server then refuses the whole
// call. All other requests are granted.
func TestRefusedRequestInBatchIsAlone(t *testing.T) {
	for _, forbidden := range []bool{false, true} {
		r, l := gated(t, app)
		do(t, r, "ACL", "SETUSER", "app", "resetkeys", "~holdfast:{???}", "~holdfast:{???}::n-*", "~holdfast:{???}::alone")
		names := numbered("n", 44)
		const busy, other, outside = 20, 21, 22
		if forbidden {
			names[outside] = "outside"
		}
		must(t, l.direct, request(names[busy], driver.Exclusive, long))
		do(t, r, "SET", redisstore.Key("", names[other]), "of something else")
		c := l.submit(t, names)
		l.release()
		for i, name := range names {
			switch _, err := c.wait(i); {
			case i == busy:
				code(t, l.s, err, driver.CodeBusy)
			case i == other, i == outside && forbidden:
				code(t, l.s, err, driver.CodeRefused)
			case err != nil:
				t.Errorf("%s: %v", name, err)
			}
		}
	}
}

// TestRefusedCommandInBatchLeavesNothing: a full server, or one whose user lacks a right, refuses the
// requests of a batch. They leave nothing, and held names are released.
func TestRefusedCommandInBatchLeavesNothing(t *testing.T) {
	r, l := gated(t, app)
	for _, c := range []struct{ refuse, permit []string }{
		{[]string{"CONFIG", "SET", "maxmemory", "1"}, []string{"CONFIG", "SET", "maxmemory", "0"}},
		{[]string{"ACL", "SETUSER", "app", "-set"}, []string{"ACL", "SETUSER", "app", "+set"}},
		{[]string{"ACL", "SETUSER", "app", "-hset"}, []string{"ACL", "SETUSER", "app", "+hset"}},
		{[]string{"ACL", "SETUSER", "app", "-pexpire"}, []string{"ACL", "SETUSER", "app", "+pexpire"}},
		{[]string{"ACL", "SETUSER", "app", "-pexpire", "-hdel"}, []string{"ACL", "SETUSER", "app", "+pexpire", "+hdel"}},
	} {
		held := must(t, l.direct, request("held", driver.Exclusive, long))
		do(t, r, c.refuse...)
		all := l.submit(t, append(numbered("n", 40), "held", "held"))
		l.release()
		for i, q := range all.requests {
			grant, err := all.wait(i)
			if err == nil || l.s.Classify(err) != driver.CodeRefused && q.Name != "held" {
				t.Errorf("%v: %s: %+v, %v", c.refuse, q.Name, grant, err)
			}
		}
		release(t, l.direct, held)
		if left := leftovers(t, r); left != nil {
			t.Errorf("%v: requests have left %v", c.refuse, left)
		}
		do(t, r, c.permit...)
	}
}

// TestRefusedReleaseInBatchKeepsGrant: the user may not remove fields. Releases in a batch are refused, and
// each name stays held until the right is back.
func TestRefusedReleaseInBatchKeepsGrant(t *testing.T) {
	r, l := gated(t, app)
	names := numbered("n", 44)
	grants := make([]driver.Grant, len(names))
	for i, name := range names {
		grants[i] = must(t, l.s, request(name, driver.Exclusive, long))
	}
	do(t, r, "ACL", "SETUSER", "app", "-hdel")
	for _, refused := range []bool{true, false} {
		l.hold()
		errs := make(chan error)
		for _, grant := range grants {
			go func() { errs <- l.s.Release(t.Context(), grant, 0) }()
		}
		awaitBatches(t, len(names)-singles)
		l.release()
		for range grants {
			if err := <-errs; refused {
				code(t, l.s, err, driver.CodeRefused)
			} else if err != nil {
				t.Error(err)
			}
		}
		if n := len(leftovers(t, r)); refused && n != len(names) || !refused && n != 0 {
			t.Errorf("%d names are held after releases, refused: %t", n, refused)
		}
		do(t, r, "ACL", "SETUSER", "app", "+hdel")
	}
}

// TestLostAnswerOfBatchIsUnknown: the server grants the requests of several batches, and the answers are
// lost. Each outcome is unknown, and each grant is rolled back.
func TestLostAnswerOfBatchIsUnknown(t *testing.T) {
	r := start(t)
	p := proxy(t, r)
	must := func(f func() error) func() {
		return func() {
			check(t, f())
		}
	}
	client := goredis.NewClient(&goredis.Options{Addr: p.Address(), PoolSize: 50})
	s := over(t, client)()
	l := &link{s, open(t, "redis://"+r.Address()), must(p.DropAnswers), must(p.Heal)}
	pairs(t, s, 1)
	warm(t, client)
	do(t, r, "SCRIPT", "LOAD", source(t, "combined")) // otherwise the client sends it after the first answer
	names := numbered("n", 80)
	c := l.submit(t, names)
	eventually(t, "all requests are granted", func() bool { return len(leftovers(t, r)) == len(names) })
	for i := range names {
		c.cancel[i]()
		_, err := c.wait(i)
		code(t, l.s, err, driver.CodeUnknown)
	}
	l.release()
	c.resolved(l.s, r)
}

// TestCancelledCallerInBatch: every second caller is cancelled while its batch is under way, and the
// client rolls its request back. When the batch arrives later, the server refuses these requests and
// grants the others.
func TestCancelledCallerInBatch(t *testing.T) {
	r, l := gated(t, "")
	c := l.submit(t, numbered("n", 80))
	for i, q := range c.requests {
		if i%2 != 0 {
			continue
		}
		c.cancel[i]()
		_, err := c.wait(i)
		switch {
		case err == nil, !cancelled(err):
			t.Errorf("%s: %v", q.Name, err)
		case l.s.Classify(err) == driver.CodeUnknown:
			undone(t, l.direct, q)
		case l.s.Classify(err) != driver.CodeWithdrawn:
			t.Errorf("%s: %v", q.Name, err)
		}
	}
	l.release()
	for i := range c.requests {
		if i%2 == 0 {
			continue
		}
		grant, err := c.wait(i)
		check(t, err)
		release(t, l.s, grant)
	}
	if left := leftovers(t, r); left != nil {
		t.Errorf("cancelled requests have left %v", left)
	}
}

// TestCloseEndsBatches: a store is closed while its batches wait for a silent server. All callers
// return. If the server grants a request later, the grant is rolled back.
func TestCloseEndsBatches(t *testing.T) {
	r, l := gated(t, "")
	c := l.submit(t, numbered("n", 80))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_ = l.s.Close(ctx) // Close continues in the background
	for i := range c.requests {
		if grant, err := c.wait(i); err == nil {
			t.Errorf("granted by a silent server: %+v", grant)
		}
	}
	check(t, l.s.Close(t.Context()))
	l.release()
	c.resolved(l.direct, r)
}
