package zookeeper

import (
	"net/url"
	"strings"
	"testing"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/zkstore"
)

// TestOpenNodesAreWarnedOf: without CreatorOnly another user ends a lock, and the first note of the guarantees warns
// of that.
func TestOpenNodesAreWarnedOf(t *testing.T) {
	z := single(t)
	root, digest := zkstore.Root("/open"), zkstore.Digest("me", "secret")
	a, _ := locker(t, []string{z.Address()}, root, digest)
	k := lock(t, a, "n")
	b, _ := locker(t, []string{z.Address()}, root)
	must(t, b.Break(t.Context(), "n", k.Token()))
	<-k.Context().Done()
	closed, _ := locker(t, []string{z.Address()}, zkstore.Root("/closed"), digest, zkstore.CreatorOnly())
	for l, warns := range map[*holdfast.Locker]bool{a: true, closed: false} {
		g, err := l.Guarantees(t.Context())
		must(t, err)
		if strings.HasPrefix(g.Notes[0], "WARNING: each client that reaches the servers can end and change the locks") != warns {
			t.Errorf("%q", g.Notes)
		}
	}
}

// TestDigestUserExcludesOthers: with CreatorOnly, another user cannot change a user's nodes. Errors
// and String do not show the password.
func TestDigestUserExcludesOthers(t *testing.T) {
	z := single(t)
	root := zkstore.Root("/digest")
	a, sa := locker(t, []string{z.Address()}, root, zkstore.Digest("me", "secret"), zkstore.CreatorOnly())
	k := lock(t, a, "n")
	b, _ := locker(t, []string{z.Address()}, root)
	_, err := b.TryLock(t.Context(), "n")
	if err == nil || !strings.Contains(err.Error(), "no permission") {
		t.Errorf("without a user: %v", err)
	}
	u, err := url.Parse("zk://me:secret@" + z.Address() + "/digest?acl=creator&tick=" + tick.String())
	must(t, err)
	c, err := holdfast.Open(t.Context(), u.String())
	must(t, err)
	if _, err := c.TryLock(t.Context(), "n"); err == nil || strings.Contains(err.Error(), "secret") {
		t.Errorf("the same user: %v", err)
	}
	must(t, k.Unlock())
	must(t, lock(t, c, "n").Unlock())
	must(t, c.Close(t.Context()))
	if strings.Contains(sa.String(), "secret") {
		t.Error("String shows the password")
	}
}
