package server

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

// TestReadChecksAnswers requires that read accepts the answers of the scripts, and no others.
func TestReadChecksAnswers(t *testing.T) {
	s := &Server{}
	for _, c := range []struct {
		script string
		values []string
		kind   byte
		rest   int
	}{
		{"acquire", []string{"G1700000000000000"}, 'G', 2},
		{"acquire", []string{"G 1700000000000000 1700000000000001 0"}, 'G', 2},
		{"acquire", []string{"G", "1700000000000000", "1700000000000001", "3"}, 'G', 2},
		{"acquire", []string{"B", "1700000000000000"}, 'B', 0},
		{"release", []string{"R"}, 'R', 0},
		{"release", []string{"N"}, 'N', 0},
		{"release", []string{"R", "1700000000000000", "1700000000000001", "0"}, 'R', 2},
		{"acquire", nil, 0, 0},
		{"acquire", []string{""}, 0, 0},
		{"acquire", []string{"OK", "1"}, 0, 0},
		{"acquire", []string{"G", "soon", "1", "0"}, 0, 0},
		{"acquire", []string{"Gsoon"}, 0, 0},
		{"acquire", []string{"1700000000000000"}, 0, 0},
		{"release", []string{"1700000000000000"}, 0, 0},
	} {
		rep, err := s.Read(&Script{Name: c.script}, nil, driver.Now(), Micros(), c.values, nil)
		if c.kind == 0 {
			if driver.CodeOf(err) != driver.CodeUnknown || err == nil {
				t.Errorf("%s %q: %+v, %v", c.script, c.values, rep, err)
			}
			continue
		}
		if err != nil || rep.Kind != c.kind || len(rep.Values) != c.rest {
			t.Errorf("%s %q: %c %q, %v", c.script, c.values, rep.Kind, rep.Values, err)
		}
	}
}

// TestClientsDoNotSubscribeInStep: a server ends the subscriptions of all clients at one moment, and accepts new ones
// later.
func TestClientsDoNotSubscribeInStep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const clients, outage = 200, 5 * time.Second
		began := time.Now()
		returned := map[time.Duration]int{} // by tenths of a second
		var mu sync.Mutex
		for range clients {
			go KeepSubscribed(t.Context(), func(ctx context.Context, _ string, ready func(), _ func(string)) error {
				since := time.Since(began)
				if since < outage {
					return errors.New("down")
				}
				mu.Lock()
				returned[since/(100*time.Millisecond)]++
				mu.Unlock()
				ready()
				<-ctx.Done()
				return ctx.Err()
			}, "", func() {}, nil, func() {})
		}
		time.Sleep(outage + 1100*time.Millisecond)
		mu.Lock()
		defer mu.Unlock()
		all := 0
		for tenth, n := range returned {
			if all += n; n > clients/2 {
				t.Errorf("%d of %d clients have subscribed in a tenth of a second, at %s", n, clients, tenth*100*time.Millisecond)
			}
		}
		if all != clients {
			t.Errorf("%d of %d clients have subscribed", all, clients)
		}
	})
}
