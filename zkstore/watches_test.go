package zkstore

import (
	"testing"

	"github.com/holdfast-go/holdfast/driver"
)

// bare is a session without a server.
func bare() *session {
	return &session{
		wakeUp: make(chan struct{}, 1), grants: map[string]*grant{}, ours: map[string]*grant{},
		entries: map[string]map[*entry]struct{}{}, subs: map[string]map[*entry]struct{}{}, trees: map[*tree]struct{}{},
	}
}

// grant registers a grant.
func (ss *session) grant(id string) *grant {
	g := &grant{Grant: driver.Grant{ID: id}, ss: ss, dir: "/d", path: "/d/" + id}
	ss.grants[g.ID], ss.ours[g.path] = g, g
	return g
}

// TestRemovalTakesTheGrantsWatch: an entry of a session stops watching a node that has
// become a grant of the same session. That also removes the watch of the grant.
func TestRemovalTakesTheGrantsWatch(t *testing.T) {
	ss := bare()
	g, other := ss.grant("g"), ss.grant("other")
	g.watched, other.watched = 1, 1
	ss.watchesRemoved([]string{g.path, "/d/gone"})
	if g.watched != 0 || other.watched != 1 {
		t.Errorf("watched on %d, the other on %d", g.watched, other.watched)
	}
	select {
	case <-ss.wakeUp:
	default:
		t.Error("no check runs")
	}
}
