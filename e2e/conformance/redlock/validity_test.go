package redlock

import (
	"fmt"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/redisstore/redlock"
)

// lateSkew is so large that a server does not refuse a late request for its age alone.
const lateSkew = 2 * time.Second

// aheadOfClocks makes each first grant of a client write a larger token to the servers.
func (f *fleet) aheadOfClocks() {
	for i := range f.all {
		f.do(i, "HSET", "holdfast:redlock", "least", strconv.FormatInt(time.Now().Add(time.Hour).UnixMicro(), 10))
	}
}

// lock returns the value of a lock at a server, "" if it is free, and how long it stands.
func (f *fleet) lock(i int, name string) (string, time.Duration) {
	value, _ := f.do(i, "GET", "holdfast:redlock:l::"+name).(string)
	ms, _ := f.do(i, "PTTL", "holdfast:redlock:l::"+name).(int64)
	return value, time.Duration(ms) * time.Millisecond
}

// TestValidityCountsFromTheSend: the requests of a second script, or their answers, are late: those that write a larger
// token, or that restore votes in a renewal. The validity counts from before the requests of the first script. If the
// TTL has passed meanwhile, there is none. The suite has the requests of one script.
func TestValidityCountsFromTheSend(t *testing.T) {
	f := start(t, 3, options{redlock.MaxTTL(time.Hour), redlock.Skew(lateSkew)})
	ahead := start(t, 3, options{redlock.MaxTTL(time.Hour), redlock.Skew(lateSkew)})
	ahead.aheadOfClocks()
	const delay = 100 * time.Millisecond
	for _, path := range []string{"token", "restored vote"} {
		for _, late := range []string{"request", "answer"} {
			for _, passed := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s/%s/TTL passed %t", path, late, passed), func(t *testing.T) {
					t.Parallel()
					d, fleet := delayed{script: "vote", answer: late == "answer", by: delay}, f
					if path == "token" {
						d.script, fleet = "raise", ahead
					}
					ttl := time.Minute
					if passed {
						ttl, d.by = delay, 2*delay
					}
					fleet.validity(t, path, &d, ttl, passed)
				})
			}
		}
	}
}

// delayed delays the requests of one script, or their answers.
type delayed struct {
	script string
	answer bool
	by     time.Duration

	mu     sync.Mutex
	on     bool
	called map[string]time.Time // by ballot: when the first vote or renewal was requested
}

func (d *delayed) hook(c call) ([]string, error) {
	d.mu.Lock()
	id := ""
	switch c.script {
	case "vote":
		id = c.args[1]
	case "renew":
		id = c.args[0]
	}
	if _, has := d.called[id]; d.called != nil && !has {
		d.called[id] = time.Now()
	}
	on := d.on && c.script == d.script
	d.mu.Unlock()
	if on && !d.answer {
		time.Sleep(d.by)
	}
	v, err := c.send()
	if on && d.answer {
		time.Sleep(d.by)
	}
	return v, err
}

// start begins the delays, and records when requests are sent from now on.
func (d *delayed) start() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.on, d.called = true, map[string]time.Time{}
}

// firstCall returns when the first request of a ballot was sent.
func (d *delayed) firstCall(ballot string) time.Time {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.called[ballot+" "]
}

func (f *fleet) validity(t *testing.T, path string, d *delayed, ttl time.Duration, passed bool) {
	name := newName("validity")
	s := f.tapped(t, d.hook)
	r := request(name, ttl)
	var g driver.Grant
	var sent driver.Instant
	var err error
	if path == "restored vote" {
		r.TTL = time.Minute
		if passed {
			r.TTL = time.Second // so that a renewal begins in time
			d.by = r.TTL
		}
		g = must(t, s, name, r.TTL)
		for i := range f.all {
			until(t, "each server has voted", func() bool { value, _ := f.lock(i, name); return value != "" })
			if i > 0 {
				f.do(i, "DEL", "holdfast:redlock:l::"+name)
			}
		}
		d.start()
		renewed := s.Renew(t.Context(), []driver.Grant{g})[0]
		sent, err = renewed.SentAt, renewed.Err
	} else {
		d.start()
		g, err = s.Acquire(t.Context(), r)
		sent = g.SentAt
	}
	switch {
	case passed && err == nil:
		t.Errorf("valid from %s, for %s, although the TTL has passed", sent.Time(), ttl)
	case passed:
	case err != nil:
		t.Fatal(err)
	default:
		ballot := ""
		for i := range f.all {
			value, _ := f.lock(i, name)
			if first, _, _ := strings.Cut(value, " "); strings.HasPrefix(first, g.ID+".") {
				ballot = first
			}
		}
		first := d.firstCall(ballot)
		if first.IsZero() || sent.Time().After(first) {
			t.Errorf("valid from %s, want a time before the first request, at %s", sent.Time(), first)
		}
	}
}
