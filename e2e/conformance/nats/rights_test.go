package nats

import (
	"context"
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/e2e/conformance/requests"
	"github.com/holdfast-go/holdfast/internal/servers"
	"github.com/holdfast-go/holdfast/natsstore"
)

// rights returns the subjects that docs/nats.md lists for a user that locks.
func rights(t *testing.T) (publish, subscribe []string) {
	t.Helper()
	page, err := os.ReadFile("../../../docs/nats.md")
	check(t, err)
	list := func(kind string) []string {
		m := regexp.MustCompile(kind + `: \[(.*)\]`).FindSubmatch(page)
		if m == nil {
			t.Fatalf("the page has no list %s", kind)
		}
		return strings.Split(string(m[1]), ", ")
	}
	return list("publish"), list("subscribe")
}

// withUsers starts a server with an administrator and a user with some rights, and creates the bucket.
func withUsers(t *testing.T, publish, subscribe []string) *cluster {
	t.Helper()
	c := startEmpty(t, servers.NATSConfig{Settings: fmt.Sprintf(`authorization { users: [
		{ user: admin, password: admin }
		{ user: app, password: secret, permissions: { publish: [%s], subscribe: [%s] } }
	] }`, strings.Join(publish, ", "), strings.Join(subscribe, ", "))})
	check(t, openAt(t, c.as("admin:admin"), "").Init(t.Context()))
	return c
}

func (c *cluster) as(user string) string {
	return strings.Replace(c.url(c.addresses()), "//", "//"+user+"@", 1)
}

// TestUserWithDocumentedRightsDoesEverything: a user with exactly the rights of the page locks, lists, breaks and
// keeps values. It must not create a bucket.
func TestUserWithDocumentedRightsDoesEverything(t *testing.T) {
	publish, subscribe := rights(t)
	c := withUsers(t, publish, subscribe)
	s := openAt(t, c.as("app:secret"), "ns")
	check(t, requests.Uses(t, s, "a/b.c ü"))
	if err := s.Init(t.Context()); driver.CodeOf(err) != driver.CodeRefused {
		t.Errorf("Init: %v", err)
	}
}

// TestMissingRightIsRefused: without one of the rights to publish, a request is refused, and does not wait for its
// deadline.
func TestMissingRightIsRefused(t *testing.T) {
	publish, subscribe := rights(t)
	for i, missing := range publish {
		if strings.Contains(missing, "wake") {
			continue // its messages only spare waiters a poll
		}
		t.Run(missing, func(t *testing.T) {
			rest := append(append([]string{}, publish[:i]...), publish[i+1:]...)
			c := withUsers(t, rest, subscribe)
			s := openAt(t, c.as("app:secret"), "")
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			if _, err := s.Put(ctx, "key", []byte("value"), ""); err == nil { // it reads nothing
				_, _, err = s.Get(ctx, "key")
				if driver.CodeOf(err) != driver.CodeRefused {
					t.Errorf("Get: %v", err)
				}
			} else if driver.CodeOf(err) != driver.CodeRefused {
				t.Errorf("Put: %v", err)
			}
		})
	}
}

// TestWrongPasswordIsRefused: Open reports a wrong password at once.
func TestWrongPasswordIsRefused(t *testing.T) {
	publish, subscribe := rights(t)
	c := withUsers(t, publish, subscribe)
	if _, err := natsstore.Open(t.Context(), c.as("app:wrong"), ""); driver.CodeOf(err) != driver.CodeRefused ||
		strings.Contains(err.Error(), "wrong") {
		t.Errorf("Open: %v", err)
	}
}

// TestUnfitBucketIsRefused: the store refuses a bucket that may lose or remove records, and names the setting.
func TestUnfitBucketIsRefused(t *testing.T) {
	c := startEmpty(t, servers.NATSConfig{})
	js := c.direct(t)
	use := func() error {
		_, err := openAt(t, c.url(c.addresses()), "").Put(t.Context(), "key", nil, "")
		return err
	}
	if err := use(); driver.CodeOf(err) != driver.CodeRefused || !strings.Contains(err.Error(), "holdfast init") {
		t.Errorf("without a bucket: %v", err)
	}
	three := openAt(t, strings.Replace(c.url(c.addresses()), "replicas=1", "replicas=3", 1), "")
	if err := three.Init(t.Context()); driver.CodeOf(err) != driver.CodeRefused || !strings.Contains(err.Error(), "replicas") {
		t.Errorf("a bucket with three replicas on one server: %v", err)
	}
	// Behind the removal of its last stream, the server removes the directory in which it would make the next one
	// (stream.go of NATS 2.15, at the end of stop): one stream stays.
	if _, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "stays", Subjects: []string{"stays"}}); err != nil {
		t.Fatal(err)
	}
	for why, change := range map[string]func(*jetstream.StreamConfig){
		"storage in memory":                  func(c *jetstream.StreamConfig) { c.Storage = jetstream.MemoryStorage },
		"a TTL":                              func(c *jetstream.StreamConfig) { c.MaxAge = time.Hour },
		"another history":                    func(c *jetstream.StreamConfig) { c.MaxMsgsPerSubject = 2 },
		"a limit that removes":               func(c *jetstream.StreamConfig) { c.MaxBytes, c.Discard = 1<<20, jetstream.DiscardOld },
		"no direct reads":                    func(c *jetstream.StreamConfig) { c.AllowDirect = false },
		"a retention":                        func(c *jetstream.StreamConfig) { c.Retention = jetstream.WorkQueuePolicy },
		"records of another":                 func(c *jetstream.StreamConfig) { c.Sources = []*jetstream.StreamSource{{Name: "other"}} },
		"acknowledges too early":             func(c *jetstream.StreamConfig) { c.PersistMode = jetstream.AsyncPersistMode },
		"no acknowledged":                    func(c *jetstream.StreamConfig) { c.NoAck = true },
		"other subjects":                     func(c *jetstream.StreamConfig) { c.Subjects = []string{"$KV.locks.lock.>", "$KV.locks.clock"} },
		"1 replicas, and the URL asks for 3": nil,
	} {
		t.Run(why, func(t *testing.T) {
			config := jetstream.StreamConfig{Name: "KV_locks", Subjects: []string{"$KV.locks.>"}, MaxMsgsPerSubject: 1,
				Discard: jetstream.DiscardNew, AllowDirect: true}
			at := c.url(c.addresses())
			if change != nil {
				change(&config)
			} else {
				at = strings.Replace(at, "replicas=1", "replicas=3", 1)
			}
			_, err := js.CreateStream(t.Context(), config)
			check(t, err)
			defer func() { _ = js.DeleteStream(context.Background(), config.Name) }()
			_, err = openAt(t, at, "").Put(t.Context(), "key", nil, "")
			if driver.CodeOf(err) != driver.CodeRefused || !strings.Contains(err.Error(), why) {
				t.Errorf("Put: %v", err)
			}
		})
	}
}
