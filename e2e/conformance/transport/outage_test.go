package transport

import (
	"context"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/e2e/conformance/requests"
	"github.com/holdfast-go/holdfast/e2e/servertest"
	"github.com/holdfast-go/holdfast/internal/servers"
)

// An outage is longer than the pauses of each client library. Another length comes from the environment, as in
// HOLDFAST_TEST_OUTAGE=5m.
var outage = func() time.Duration {
	if d, err := time.ParseDuration(os.Getenv("HOLDFAST_TEST_OUTAGE")); err == nil {
		return d
	}
	return 30 * time.Second
}()

// TestStoresReconnectAfterOutage: the servers are away. A waiter, and a client that tries again and again, continue to
// connect as often as at first. A holder keeps a lock that outlasts the outage, unless the lock ends with its connection.
// When the servers are back, all of them go on.
func TestStoresReconnectAfterOutage(t *testing.T) {
	for _, s := range stores {
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			addresses := s.start(t)
			behind := func() (*holdfast.Locker, proxies) {
				p := before(t, addresses)
				return open(t, s.at(s.clear, encoded, "", p.addresses())), p
			}
			ttl := holdfast.TTL(min(2*outage, time.Minute)) // Redlock allows no more; after a longer outage the held lock has ended
			blocking, err := open(t, s.at(s.clear, encoded, "", addresses)).Lock(t.Context(), "busy", ttl)
			must(t, err)
			holder, holding := behind()
			held, err := holder.Lock(t.Context(), "held", ttl)
			must(t, err)
			waiter, waiting := behind()
			if _, err := waiter.TryLock(t.Context(), "busy"); err == nil {
				t.Fatal("the name is not held")
			}
			granted := make(chan error, 1)
			go func() { granted <- waiter.Do(t.Context(), "busy", func(context.Context) error { return nil }) }()
			other, trying := behind()
			try := func() error { return tryOnce(t, other) }
			must(t, try())

			attempts := []func() int{waiting.cut(t), trying.cut(t), holding.cut(t)}
			fails(t, try)
			for i, client := range []string{"a waiter", "a client that tries"} {
				enough(t, client, attempts[i]())
			}
			t.Logf("the holder has tried to connect %d times", attempts[2]())
			for _, p := range []proxies{holding, waiting, trying} {
				p.heal(t)
			}
			began := time.Now()
			back := func(what string) { t.Logf("%s after %s", what, time.Since(began).Round(time.Millisecond)) }
			requests.Eventually(t, "a lock is granted", func() bool { return try() == nil })
			back("a lock is granted")
			must(t, blocking.Unlock())
			must(t, requests.Receive(t, "the waiter's lock", granted))
			back("the waiter has had its lock")
			if held.Context().Err() != nil { // it has ended with its connection
				_ = held.Unlock()
				held, err = requests.Retried(func() (*holdfast.Lock, error) { return holder.Lock(t.Context(), "held", ttl) })
				must(t, err)
			}
			requests.Eventually(t, "the lock is renewed", func() bool { return held.Remaining() > min(outage, 30*time.Second) })
			must(t, held.Unlock())
			back("the holder has released its lock")
		})
	}
}

// TestStoresReconnectAfterOutageOfSentinels: no server answers a client that first needs a sentinel, or a node of a
// cluster.
func TestStoresReconnectAfterOutageOfSentinels(t *testing.T) {
	for name, form := range map[string]string{"sentinel": "redis+sentinel://ADDRESS/main", "cluster": "redis+cluster://ADDRESS"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			address, attempts := servertest.Attempts(t, "127.0.0.1:0")
			l := open(t, strings.ReplaceAll(form, "ADDRESS", address))
			fails(t, func() error { return tryOnce(t, l) })
			enough(t, "a client that tries", attempts())
		})
	}
}

// open opens a Locker, and closes it at the end of the test.
func open(t *testing.T, url string) *holdfast.Locker {
	t.Helper()
	l, err := holdfast.Open(t.Context(), url)
	must(t, err)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(background, 10*time.Second)
		defer cancel()
		_ = l.Close(ctx)
	})
	return l
}

func tryOnce(t *testing.T, l *holdfast.Locker) error {
	k, err := l.TryLock(t.Context(), "free")
	if err == nil {
		err = k.Unlock()
	}
	return err
}

// fails calls try again and again during an outage.
func fails(t *testing.T, try func() error) {
	t.Helper()
	for end := time.Now().Add(outage); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
		if try() == nil {
			t.Fatal("a lock without a server")
		}
	}
}

// enough requires the number of attempts to connect in an outage. A client that needs the server tries about once a
// second, or more often. A client library whose pauses double from one second on tries fewer times.
func enough(t *testing.T, client string, attempts int) {
	t.Helper()
	t.Logf("%s has tried to connect %d times in %s", client, attempts, outage)
	if least := int(outage / (3 * time.Second)); attempts < least {
		t.Errorf("want at least %d times", least)
	}
}

// proxies are those of one client, one before each server.
type proxies []*servers.Proxy

func before(t *testing.T, addresses []string) (all proxies) {
	for _, a := range addresses {
		p, err := servers.NewProxy(a)
		must(t, err)
		t.Cleanup(p.Close)
		all = append(all, p)
	}
	return all
}

func (p proxies) addresses() (all []string) {
	for _, one := range p {
		all = append(all, one.Address())
	}
	return all
}

// cut begins an outage. attempts returns how often the client has tried to connect, at the server with the most.
func (p proxies) cut(t *testing.T) (attempts func() int) {
	var ends []func() int
	for _, one := range p {
		one.Cut()
		_, end := servertest.Attempts(t, one.Address())
		ends = append(ends, end)
	}
	return func() (most int) {
		for _, end := range ends {
			most = max(most, end())
		}
		return most
	}
}

// heal ends an outage.
func (p proxies) heal(t *testing.T) {
	for _, one := range p {
		must(t, one.Heal())
	}
}
