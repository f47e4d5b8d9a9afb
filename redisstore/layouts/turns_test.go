package layouts

import (
	"testing"
	"testing/synctest"
	"time"
)

// use lets a process hold a name again and again for a time, each time after its pause, and returns how
// often it paused.
func (t *turns) use(span, hold, free time.Duration, heard bool) (pauses int) {
	for end := time.Now().Add(span); time.Now().Before(end); time.Sleep(free) {
		if d := t.pause("a"); d > 0 {
			pauses++
			time.Sleep(d)
		}
		t.granted("a")
		time.Sleep(hold)
		t.released("a", heard)
	}
	return pauses
}

func TestTurnEndsOnlyBesideOtherClients(t *testing.T) {
	const hold = 10 * time.Millisecond
	for name, c := range map[string]struct {
		polls, heard, paused bool
		free                 time.Duration
	}{
		"no client listens":                       {},
		"a client listens":                        {heard: true, paused: true},
		"clients that poll cannot be seen":        {polls: true, paused: true},
		"clients that poll find the name free":    {polls: true, free: pollYield},
		"a client listens, and the name was free": {heard: true, free: pushYield},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				all := turns{yield: pushYield, polls: c.polls, all: map[string]*turn{}}
				if c.polls {
					all.yield = pollYield
				}
				if n := all.use(time.Minute, hold, c.free, c.heard); (n > 0) != c.paused {
					t.Errorf("%d pauses", n)
				}
			})
		})
	}
}

func TestTurnsForgetNamesWithoutOtherClients(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		all := turns{yield: pushYield, all: map[string]*turn{}}
		all.blocked("a")
		time.Sleep(turnFor + time.Second)
		if n := all.use(time.Minute, time.Second, 0, false); n != 0 || len(all.all) != 0 {
			t.Errorf("%d pauses, and %d names are kept", n, len(all.all))
		}
		for i := range 1000 {
			all.blocked(string(rune('a' + i)))
			time.Sleep(time.Second)
		}
		if n := len(all.all); n > 200 {
			t.Errorf("%d names are kept, and %d had another client lately", n, turnFor/time.Second)
		}
	})
}
