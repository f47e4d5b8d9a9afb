package held

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

// requester records the losses that it is notified of.
type requester struct{ lost []driver.Cause }

func (*requester) Owner() driver.Owner                { return driver.Owner{} }
func (*requester) Queued([]driver.Holder)             {}
func (r *requester) Lost(cause driver.Cause, _ error) { r.lost = append(r.lost, cause) }

func grant(id string, from driver.Requester) *Grant {
	return &Grant{Grant: driver.Grant{ID: id, SentAt: driver.NowInProcess()}, From: from}
}

// checks records the IDs of the grants of each check.
type checks [][]string

func (c *checks) check(due []*Grant) {
	var ids []string
	for _, h := range due {
		ids = append(ids, h.ID)
	}
	slices.Sort(ids)
	*c = append(*c, ids)
}

func (c *checks) want(t *testing.T, want ...[]string) {
	t.Helper()
	synctest.Wait()
	if !slices.EqualFunc(*c, want, slices.Equal) {
		t.Errorf("checked %q, want %q", *c, want)
	}
	*c = nil
}

func TestChecksUnprovenGrantsAtAnInterval(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var c checks
		g := New(time.Second, 1200*time.Millisecond, c.check)
		defer g.Stop()
		g.Hold(grant("a", nil))
		g.Hold(grant("b", nil))
		time.Sleep(time.Second)
		c.want(t, nil) // proven a second ago
		g.Prove("a", time.Now())
		time.Sleep(time.Second)
		c.want(t, []string{"b"})
		g.Forget("b")
		time.Sleep(time.Second)
		c.want(t, []string{"a"})
		g.Forget("a")
		time.Sleep(time.Minute)
		c.want(t, nil)
		g.Hold(grant("c", nil))
		time.Sleep(2 * time.Second)
		c.want(t, nil, []string{"c"})
		g.Stop()
		time.Sleep(time.Minute)
		c.want(t)
	})
}

func TestSuspectsAreCheckedNow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var c checks
		var g *Grants
		during := func() { g.Suspect("b") }
		g = New(time.Second, time.Minute, func(due []*Grant) {
			c.check(due)
			during()
			during = func() {}
		})
		defer g.Stop()
		g.SuspectAll() // none
		for _, id := range []string{"a", "b"} {
			g.Hold(grant(id, nil))
		}
		g.Suspect("a")
		g.Suspect("other")
		c.want(t, []string{"a"}, []string{"b"})
		g.Suspect("a")
		c.want(t, []string{"a"})
		g.SuspectAll()
		c.want(t, []string{"a", "b"})
	})
}

func TestLossIsReportedOnceAndNotAfterRelease(t *testing.T) {
	g := New(time.Hour, 0, nil)
	defer g.Stop()
	var r requester
	lost, released := grant("a", &r), grant("b", &r)
	g.Hold(lost)
	g.Hold(released)
	g.Forget("b")
	g.Lose(released, driver.CauseGone, nil)
	g.Lose(lost, driver.CauseTaken, nil)
	g.Lose(lost, driver.CauseGone, nil)
	if !slices.Equal(r.lost, []driver.Cause{driver.CauseTaken}) {
		t.Errorf("reported %q", r.lost)
	}
	if len(g.All()) != 0 || g.Get("a") != nil {
		t.Error("a lost grant is still held")
	}
	again := grant("b", &r) // another grant of the same request
	g.Hold(again)
	g.Lose(released, driver.CauseGone, nil)
	if g.Get("b") != again || len(r.lost) != 1 {
		t.Error("the loss of one grant ended another")
	}
}

func TestClientsDoNotCheckInStepAfterOneReason(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		next := map[time.Duration]bool{}
		for range 20 {
			var reason time.Time
			g := New(time.Second, 0, func([]*Grant) {
				if since := time.Since(reason); since > 0 {
					next[since] = true
					if since > time.Second {
						t.Errorf("the next check came after %s", since)
					}
				}
			})
			g.Hold(grant("a", nil))
			time.Sleep(300 * time.Millisecond)
			reason = time.Now()
			g.SuspectAll()
			time.Sleep(1010 * time.Millisecond)
			g.Stop()
		}
		if len(next) < 10 {
			t.Errorf("20 clients have checked at %d times", len(next))
		}
	})
}
