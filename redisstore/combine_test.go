package redisstore

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/must"
)

// allGranted returns the answer to a batch in which every request is granted or released.
func allGranted(args []string) []string {
	letters := ""
	for _, a := range args[2:] {
		switch {
		case strings.HasPrefix(a, " "):
			letters += "R"
		case !strings.HasPrefix(a, "+"):
			letters += "G"
		}
	}
	return []string{serverNow(), letters}
}

// crowd makes n requests at once. The first few go by themselves, the others form batches. It
// returns their grants and errors when all have returned.
func crowd(t *testing.T, s *Store, n int) (grants []driver.Grant, errs []error) {
	grants, errs = make([]driver.Grant, n), make([]error, n)
	var all sync.WaitGroup
	for i := range n {
		all.Go(func() {
			id := string(rune('a'+i/26)) + string(rune('a'+i%26))
			grants[i], errs[i] = s.Acquire(t.Context(), driver.Request{ID: id, Name: id, Limit: driver.Exclusive, TTL: time.Minute, From: noRequester{}})
		})
	}
	all.Wait()
	return grants, errs
}

// TestBatchWithoutAnswerDelaysNoOther leaves the first requests and the first batches without an
// answer. It requires that later batches are sent and answered.
func TestBatchWithoutAnswerDelaysNoOther(t *testing.T) {
	const n = 200
	silent, served := make(chan struct{}), 0
	var mu sync.Mutex
	batches := 0
	f := &fake{}
	s := overFake(t, f)
	f.eval = func(sc *Script, _, args []string) ([]string, error) {
		mu.Lock()
		if sc == combinedScript {
			batches++
		}
		wait := sc != combinedScript || batches <= 2
		if !wait {
			answer := allGranted(args)
			if served += len(answer[1]); served > n/2 {
				select {
				case <-silent:
				default:
					close(silent)
				}
			}
			mu.Unlock()
			return answer, nil
		}
		mu.Unlock()
		<-silent
		return nil, errLost
	}
	_, errs := crowd(t, s, n)
	granted := 0
	for _, err := range errs {
		switch {
		case err == nil:
			granted++
		case driver.CodeOf(err) != driver.CodeUnknown:
			t.Error(err)
		}
	}
	if granted != served {
		t.Errorf("%d requests were granted, the server has granted %d", granted, served)
	}
}

// TestBatchCountsFromItsSending requires that the validity of a combined grant begins before its
// batch is sent. The server must accept no request of a batch later than it would accept the
// request by itself.
func TestBatchCountsFromItsSending(t *testing.T) {
	f := &fake{}
	s := overFake(t, f)
	var mu sync.Mutex
	combined := map[string]driver.Instant{}
	full := make(chan struct{})
	f.eval = func(sc *Script, keys, args []string) ([]string, error) {
		now := driver.Now()
		if sc != combinedScript {
			<-full // batches form meanwhile
			return []string{"G" + serverNow()}, nil
		}
		mu.Lock()
		defer mu.Unlock()
		if len(combined) == 0 {
			close(full)
		}
		for _, a := range args[3:] {
			combined[a[strings.LastIndex(a, " ")+1:]] = now
		}
		return allGranted(args), nil
	}
	grants, errs := crowd(t, s, 100)
	for i, g := range grants {
		if errs[i] != nil {
			t.Fatal(errs[i])
		}
		if sent, ok := combined[g.ID]; ok && g.SentAt.Time().After(sent.Time()) {
			t.Errorf("the validity of %s begins at %v, and its batch was sent at %v", g.ID, g.SentAt, sent)
		}
	}
}

// TestUnreadableAnswerOfBatchIsUnknown requires an unknown outcome if the answer to a batch does
// not match its requests.
func TestUnreadableAnswerOfBatchIsUnknown(t *testing.T) {
	for _, answer := range [][]string{nil, {"x", "G"}, {serverNow()}, {serverNow(), ""}, {serverNow(), strings.Repeat("G", maxCombined+1)}, {serverNow(), "*"}, {serverNow(), "F", "R"}, {serverNow(), "*", ""}} {
		f := &fake{}
		s := overFake(t, f)
		singles := make(chan struct{})
		var once sync.Once
		f.eval = func(sc *Script, _, args []string) ([]string, error) {
			if sc == combinedScript {
				once.Do(func() { close(singles) })
				return answer, nil
			}
			<-singles
			return []string{"G" + serverNow()}, nil
		}
		_, errs := crowd(t, s, maxSingles+1)
		unknown := 0
		for _, err := range errs {
			if err != nil && driver.CodeOf(err) == driver.CodeUnknown {
				unknown++
			}
		}
		if unknown != 1 {
			t.Errorf("%q: %v", answer, errs)
		}
	}
}

// TestServerOfSeveralIsNotCombined uses a proxy that refuses a call whose keys are on different
// servers. It requires that each request goes by itself from then on.
func TestServerOfSeveralIsNotCombined(t *testing.T) {
	f := &fake{}
	s := overFake(t, f)
	var mu sync.Mutex
	batches := 0
	refused := make(chan struct{})
	f.eval = func(sc *Script, _, args []string) ([]string, error) {
		mu.Lock()
		if sc == combinedScript {
			if batches++; batches == 1 {
				close(refused)
			}
			mu.Unlock()
			return nil, ServerError("CROSSSLOT Keys in request don't hash to the same slot")
		}
		mu.Unlock()
		<-refused
		return []string{"G" + serverNow()}, nil
	}
	for _, n := range []int{maxSingles + 1, 100} {
		_, errs := crowd(t, s, n)
		for _, err := range errs {
			must.Succeed(t, err)
		}
	}
	if batches != 1 {
		t.Errorf("%d batches were sent", batches)
	}
	_ = s.Close(context.Background())
}
