package redis

import (
	"strconv"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/e2e/servertest"
	"github.com/holdfast-go/holdfast/internal/servers"
	"github.com/holdfast-go/holdfast/redisstore"
	"github.com/holdfast-go/holdfast/redisstore/layouts"
)

// TestLayoutTokensExceedTokensSeen: the server loses its data and its clock is set back. The next token of a
// client is above those that it has seen.
func TestLayoutTokensExceedTokensSeen(t *testing.T) {
	r := start(t)
	fakeClock(t, r)
	eachLayout(t, func(t *testing.T, l layouts.Layout) {
		if l == layouts.RedissonFenced {
			t.Skip("tokens are those of Redisson's counter")
		}
		s := openLayout(t, "redis://"+r.Address(), l, withFairWait(l)...)
		g := must(t, s, request(string(l), many(l), long))
		release(t, s, g)
		do(t, r, "FLUSHALL")
		check(t, r.SetClock(-time.Hour))
		next := must(t, s, request(string(l), many(l), long))
		rises(t, g, next)
		release(t, s, next)
		check(t, r.SetClock(0))
	})
}

// TestTokenRisesAfterGrantWithoutCounter: while a hash slot moves, the script grants a request without
// the counter, and the answer is lost. The client repeats the request after the move. The next token is
// larger, even if the server's clock was set back.
func TestTokenRisesAfterGrantWithoutCounter(t *testing.T) {
	r := start(t)
	fakeClock(t, r)
	p := newPlain(t, r)
	s, used := recordScripts(t, p)
	key := redisstore.Key("", "x")
	counter := key[:len("holdfast:{000}")]
	release(t, s, must(t, s, request("y", driver.Exclusive, long)))
	script, args := used("acquire")
	args = append(args[:5], "0", "0", "1") // does not wait, has no queue entry, repeats an unanswered call
	args[0] = "1 - o w"                    // limit, channel, owner, ID
	var token string
	for _, keys := range [][]string{{key}, {key, counter}} {
		answer, err := p.Eval(t.Context(), script, keys, args)
		if err != nil || answer[0] != "G" {
			t.Fatalf("%q, %v", answer, err)
		}
		token = answer[2]
	}
	check(t, r.SetClock(-long))
	do(t, r, "DEL", key) // as a release does
	g := must(t, open(t, "redis://"+r.Address()), request("x", driver.Exclusive, long))
	if first, err := strconv.ParseUint(token, 10, 64); err != nil || g.Token <= first {
		t.Errorf("token %d after %s", g.Token, token)
	}
}

// fakeClock restarts a server with a clock that SetClock sets. It skips or fails the test if
// libfaketime is missing or does not work with the server.
func fakeClock(t *testing.T, r *servers.Redis) {
	t.Helper()
	if err := r.FakeClock(t.Context()); err != nil {
		servertest.Started(t, err)
	}
}

// TestEveryGrantExceedsTokensSeen: a client has seen a token of the bucket that is ahead of the server's
// clock, and the server has lost its counter. Each way to a grant gives a larger token.
func TestEveryGrantExceedsTokensSeen(t *testing.T) {
	r := start(t)
	a, b := open(t, "redis://"+r.Address()), open(t, "redis://"+r.Address())
	reserving := func(name string) driver.Request {
		q := request(name, driver.Exclusive, long)
		q.Tokens = 100
		return q
	}
	after := func(t *testing.T, holder driver.Store, r driver.Request) (grant func() driver.Grant) {
		held := must(t, holder, request(r.Name, driver.Exclusive, long))
		w := queue(t, a, r)
		return func() driver.Grant {
			release(t, holder, held)
			return w.Granted()
		}
	}
	for way, prepare := range map[string]func(t *testing.T, name string) (grant func() driver.Grant){
		"free": func(t *testing.T, name string) func() driver.Grant {
			return func() driver.Grant { return must(t, a, request(name, driver.Exclusive, long)) }
		},
		"free, with a range": func(t *testing.T, name string) func() driver.Grant {
			return func() driver.Grant { return must(t, a, reserving(name)) }
		},
		"beside a reader": func(t *testing.T, name string) func() driver.Grant {
			must(t, b, request(name, driver.Unlimited, long))
			return func() driver.Grant { return must(t, a, request(name, driver.Unlimited, long)) }
		},
		"beside a permit": func(t *testing.T, name string) func() driver.Grant {
			must(t, b, request(name, 2, long))
			return func() driver.Grant { return must(t, a, request(name, 2, long)) }
		},
		"after another client": func(t *testing.T, name string) func() driver.Grant {
			return after(t, b, request(name, driver.Exclusive, long))
		},
		"after another client, with a range": func(t *testing.T, name string) func() driver.Grant {
			return after(t, b, reserving(name))
		},
		"before the confirmation": func(t *testing.T, name string) func() driver.Grant {
			return after(t, b, provisional(name))
		},
		"after the same client": func(t *testing.T, name string) func() driver.Grant {
			return after(t, a, request(name, driver.Exclusive, long))
		},
		"by a swap": func(t *testing.T, name string) func() driver.Grant {
			held := must(t, a, request(name, driver.Exclusive, long))
			return func() driver.Grant { return swapped(t, a, held, request(name, driver.Exclusive, long)).Granted() }
		},
		"by a swap, after another client": func(t *testing.T, name string) func() driver.Grant {
			held := must(t, a, request(name, driver.Exclusive, long))
			w := queue(t, b, request(name, driver.Exclusive, long))
			return func() driver.Grant {
				last := swapped(t, a, held, request(name, driver.Exclusive, long))
				release(t, b, w.Granted())
				return last.Granted()
			}
		},
	} {
		t.Run(way, func(t *testing.T) {
			name := t.Name()
			counter, other := counterOf(name), ""
			for i := 0; counterOf(other) != counter; i++ { // another name of the bucket
				other = name + strconv.Itoa(i)
			}
			grant := prepare(t, name)
			do(t, r, "SET", counter, "8000000000000000") // microseconds: ahead of the server's clock
			seen := must(t, a, request(other, driver.Exclusive, long))
			release(t, a, seen)
			do(t, r, "DEL", counter)
			g := grant()
			rises(t, seen, g)
			release(t, a, g)
		})
	}
}
