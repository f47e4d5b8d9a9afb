package console

import (
	"cmp"
	"fmt"
	"math"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/shape"
)

const forever = driver.Forever

const (
	// maxRows is how many rows a page shows at a time.
	maxRows = 100
	// maxTimeline is how many events of a lock a page shows.
	maxTimeline = 200
	// maxShown is how many holders and waiters of a lock a page shows.
	maxShown = 500
	// eventsInterval is the interval of updates without a change, which keep rates and the connection current.
	eventsInterval = 2 * time.Second
)

// update is one message to a page: what has changed since the last one.
type update struct {
	At     string     `json:"at"`
	Stores []overview `json:"stores"`
	// Total is the number of names with the prefix, Order the names of the rows in their order, and Rows those that
	// the page does not have yet.
	Total int            `json:"total"`
	Order []string       `json:"order,omitempty"`
	Rows  map[string]row `json:"rows,omitempty"`
	// Lock is the lock that the request names, and Events what this process has seen of it.
	Lock   *shape.Lock   `json:"lock,omitempty"`
	Events []shape.Event `json:"events,omitempty"`
}

// overview is one store at a glance.
type overview struct {
	Name        string         `json:"name"`
	Error       string         `json:"error,omitempty"` // the store does not answer
	Read        bool           `json:"read"`            // the store has answered once
	Held        int            `json:"held"`
	Waiters     int            `json:"waiters"`
	Grants      float64        `json:"grants_per_second"`
	Losses      float64        `json:"losses_per_second"`
	LongestWait *float64       `json:"longest_wait_seconds"`
	Deadlocks   [][]shape.Wait `json:"deadlocks,omitempty"`
}

// row is one line of the list.
type row struct {
	Error    string        `json:"error,omitempty"`
	Mode     string        `json:"mode"`
	Holders  int           `json:"holders"`
	First    shape.Process `json:"first"` // the first holder
	Reason   string        `json:"reason"`
	Note     string        `json:"note"`
	Since    string        `json:"since"` // of the first holder; "" if unknown
	Ends     string        `json:"ends"`  // when its TTL ends without renewal, to the second; "" if never, or unknown
	ends     int64
	Waiters  int  `json:"waiters"`
	Deadlock bool `json:"deadlock"`
}

// events sends updates until the client leaves.
func (c *call) events() error {
	if _, err := c.store(); err != nil {
		return err
	}
	q := c.r.URL.Query()
	name := q.Get("name")
	if name != "" {
		if err := c.may("see", c.client.See, name); err != nil {
			return err
		}
	}
	offset, err := strconv.Atoi(cmp.Or(q.Get("offset"), "0"))
	order, known := orders[q.Get("sort")]
	switch {
	case err != nil || offset < 0:
		return invalid("offset %q: a number from 0 is allowed", q.Get("offset"))
	case !known:
		return invalid("sort %q: name, waiters, age and ttl are allowed", q.Get("sort"))
	}
	leave, err := c.admit()
	if err != nil {
		return err
	}
	defer leave()
	c.board.viewers.Add(1)
	defer c.board.viewers.Add(-1)
	_ = http.NewResponseController(c.w).SetReadDeadline(time.Time{})
	c.w.Header().Set("Content-Type", "text/event-stream")
	c.w.Header().Set("X-Accel-Buffering", "no")
	c.started = true
	tick := time.NewTicker(eventsInterval)
	defer tick.Stop()
	sent := map[string]row{}
	for {
		s := c.board.snapshot()
		u := update{At: shape.Time(time.Now()), Stores: c.overviews()}
		if name != "" {
			lock := c.shown(s.lookup(name))
			lock.Deadlocks = c.visible(shape.Through(s.cycles, lock.Name))
			u.Lock = &lock
			u.Events = c.board.recent(maxTimeline, func(e *seenEvent) bool { return e.Name == lock.Name })
		} else {
			sent = c.rows(&u, &s, q.Get("prefix"), order, offset, sent)
		}
		if err := c.send(u); err != nil {
			return err
		}
		select {
		case <-s.changed:
		case <-tick.C:
		case <-c.r.Context().Done():
			return nil
		case <-c.h.ctx.Done():
			return nil
		}
	}
}

// send writes one message. The text of JSON has no line end.
func (c *call) send(u update) error {
	c.deadline()
	if _, err := fmt.Fprint(c.w, "data: "); err != nil {
		return err
	}
	if err := shape.JSON(c.w, u, true); err != nil {
		return err
	}
	if _, err := fmt.Fprint(c.w, "\n"); err != nil {
		return err
	}
	return c.flush()
}

// shown returns the form of a lock with at most maxShown holders and waiters.
func (c *call) shown(st holdfast.State) shape.Lock {
	st.Holders = st.Holders[:min(len(st.Holders), maxShown)]
	st.Waiters = st.Waiters[:min(len(st.Waiters), maxShown)]
	return shape.Of(st, time.Now())
}

// orders are the orders of rows. Equal rows stay in the order of names.
var orders = map[string]func(a, b *holdfast.State) int{
	"":        nil,
	"name":    nil,
	"waiters": func(a, b *holdfast.State) int { return len(b.Waiters) - len(a.Waiters) },
	"age": func(a, b *holdfast.State) int {
		return cmp.Compare(since(a), since(b))
	},
	"ttl": func(a, b *holdfast.State) int { return cmp.Compare(left(a), left(b)) },
}

// since returns when the first holder got the lock; an unknown time comes last.
func since(st *holdfast.State) int64 {
	if len(st.Holders) == 0 || st.Holders[0].Since.IsZero() {
		return math.MaxInt64
	}
	return st.Holders[0].Since.UnixMilli()
}

// left returns the TTL of the first holder; an unknown one comes last.
func left(st *holdfast.State) time.Duration {
	if len(st.Holders) == 0 || st.Holders[0].TTL == 0 {
		return forever
	}
	return st.Holders[0].TTL
}

// rows adds the rows to an update, and returns all that the page then has.
func (c *call) rows(u *update, s *snapshot, prefix string, order func(a, b *holdfast.State) int, offset int,
	sent map[string]row) map[string]row {
	var all []holdfast.State
	for _, st := range s.states {
		if strings.HasPrefix(st.Name, prefix) && allowed(c.client.See, st.Name) {
			all = append(all, st)
		}
	}
	all = shape.Jobs(all, prefix)
	if order != nil {
		slices.SortStableFunc(all, func(a, b holdfast.State) int { return order(&a, &b) })
	}
	deadlocked := map[string]bool{}
	for _, cycle := range s.cycles {
		for _, w := range cycle {
			deadlocked[w.Name] = true
		}
	}
	u.Total, u.Rows = len(all), map[string]row{}
	now := map[string]row{}
	offset = min(offset, max(len(all)-1, 0)/maxRows*maxRows)
	for _, st := range all[offset:min(offset+maxRows, len(all))] {
		r := rowOf(st, s.at)
		r.Deadlock = deadlocked[st.Name]
		u.Order, now[st.Name] = append(u.Order, st.Name), r
		old, ok := sent[st.Name]
		if r.ends-old.ends == 1 || r.ends-old.ends == -1 {
			r.Ends, r.ends = old.Ends, old.ends // a read a few milliseconds later changes no row
			now[st.Name] = r
		}
		if !ok || old != r {
			u.Rows[st.Name] = r
		}
	}
	return now
}

func rowOf(st holdfast.State, at time.Time) row {
	r := row{Error: text(st.Err), Holders: len(st.Holders), Waiters: len(st.Waiters)}
	if len(st.Holders) == 0 {
		return r
	}
	h := st.Holders[0]
	r.Mode, r.First, r.Reason, r.Note = shape.Mode(h.Limit), shape.ProcessOf(h.Owner), shape.Reason(h.Owner), h.Note
	if !h.Since.IsZero() {
		r.Since = shape.Time(h.Since)
	}
	if h.TTL != 0 && h.TTL != forever {
		ends := at.Add(h.TTL).Round(time.Second)
		r.Ends, r.ends = shape.Time(ends), ends.Unix()
	}
	return r
}

// overviews returns all stores at a glance, of the names that the client may see.
func (c *call) overviews() []overview {
	var all []overview
	for _, name := range c.h.names() {
		b := c.h.boards[name]
		s := b.snapshot()
		o := overview{Name: name, Error: text(s.err), Read: !s.at.IsZero(), Deadlocks: c.visible(s.cycles)}
		var longest time.Time
		for _, st := range s.states {
			if !allowed(c.client.See, st.Name) {
				continue
			}
			o.Held += min(len(st.Holders), 1)
			o.Waiters += len(st.Waiters)
			for _, w := range st.Waiters {
				if !w.Since.IsZero() && (longest.IsZero() || w.Since.Before(longest)) {
					longest = w.Since
				}
			}
		}
		grants, losses := b.rates(c.client.See)
		o.Grants, o.Losses = float64(grants)/rateTime.Seconds(), float64(losses)/rateTime.Seconds()
		if !longest.IsZero() {
			o.LongestWait = shape.Seconds(time.Since(longest))
		}
		all = append(all, o)
	}
	return all
}
