package redis

import (
	"strconv"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/check/servers"
	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/e2e/conformance/requests"
	"github.com/holdfast-go/holdfast/e2e/servertest"
	"github.com/holdfast-go/holdfast/redisstore"
)

// TestClockSetForwardEndsTheGrant: the server's clock is set forward past the end of a lease. The holder
// is notified, and the next grant has a larger token.
func TestClockSetForwardEndsTheGrant(t *testing.T) {
	r := start(t)
	fakeClock(t, r)
	s, other := open(t, "redis://"+r.Address()), open(t, "redis://"+r.Address())
	q := request("x", driver.Exclusive, long)
	g := must(t, s, q)
	if err := r.SetClock(2 * long); err != nil {
		t.Fatal(err)
	}
	next := must(t, other, request("x", driver.Exclusive, 4*long))
	if next.Token <= g.Token {
		t.Errorf("token %d after %d", next.Token, g.Token)
	}
	select {
	case <-requests.Of(q).Losses:
	case <-time.After(testTimeout):
		t.Error("the holder was not notified")
	}
}

// TestTokenRisesAfterGrantWithoutCounter: while a hash slot moves, the script grants a request without
// the counter, and the answer is lost. The client repeats the request after the move. The next token is
// larger, even if the server's clock was set back.
func TestTokenRisesAfterGrantWithoutCounter(t *testing.T) {
	r := start(t)
	fakeClock(t, r)
	p := &plain{r: r}
	s, used := recordScripts(t, p)
	key := redisstore.Key("", "x")
	counter := key[:len("holdfast:{000}")]
	release(t, s, must(t, s, request("y", driver.Exclusive, long)))
	script, args := used("acquire")
	args = append(args[:5], "0", "0", "1")
	args[0] = "1 - o w"
	var token string
	for _, keys := range [][]string{{key}, {key, counter}} {
		answer, err := p.Eval(t.Context(), script, keys, args)
		if err != nil || answer[0] != "G" {
			t.Fatalf("%q, %v", answer, err)
		}
		token = answer[2]
	}
	if err := r.SetClock(-long); err != nil {
		t.Fatal(err)
	}
	do(t, r, "DEL", key) // as a release does
	g := must(t, open(t, "redis://"+r.Address()), request("x", driver.Exclusive, long))
	if first, err := strconv.ParseUint(token, 10, 64); err != nil || g.Token <= first {
		t.Errorf("token %d after %s", g.Token, token)
	}
}

// fakeClock lets a test set the clock of a server, or skips the test.
func fakeClock(t *testing.T, r *servers.Redis) {
	t.Helper()
	if err := r.FakeClock(t.Context()); err != nil {
		servertest.Started(t, err)
	}
}
