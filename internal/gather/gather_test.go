package gather_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast/internal/gather"
)

// TestCallsShareRequestThatFollowsThem: calls during a request share the next one, which has each key once and at
// most three of them. No call gets the answer to a request that was sent before it.
func TestCallsShareRequestThatFollowsThem(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var sent [][]string
		free := make(chan struct{})
		g := gather.New(3, func(keys []string) ([]string, error) {
			sent = append(sent, slices.Clone(keys))
			<-free
			return keys, nil
		})
		var calls sync.WaitGroup
		for _, key := range []string{"first", "a", "b", "a", "c"} {
			calls.Go(func() {
				if answer, err := g.Do(t.Context(), key); err != nil || !slices.Contains(answer, key) {
					t.Errorf("Do(%s): %v, %v", key, answer, err)
				}
			})
			synctest.Wait()
		}
		close(free)
		calls.Wait()
		g.Wait()
		if len(sent) != 3 || !slices.Equal(sent[1], []string{"a", "b"}) && !slices.Equal(sent[2], []string{"a", "b"}) {
			t.Errorf("requests: %v", sent)
		}
	})
}

// TestCallEndsWithItsContext: a request that is not answered keeps no call for longer than its context.
func TestCallEndsWithItsContext(t *testing.T) {
	free := make(chan struct{})
	g := gather.New(3, func([]string) (int, error) { <-free; return 0, nil })
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := g.Do(ctx, "a"); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	close(free)
	g.Wait()
}

// Each calls f once for each number, and keeps to the number of lanes.
func TestEachKeepsToItsLanes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		calls, running, most := map[int]int{}, 0, 0
		began := time.Now()
		gather.Each(10, 4, func(i int) {
			mu.Lock()
			calls[i]++
			running++
			most = max(most, running)
			mu.Unlock()
			time.Sleep(time.Second)
			mu.Lock()
			running--
			mu.Unlock()
		})
		if took := time.Since(began); took != 3*time.Second || most != 4 || running != 0 {
			t.Errorf("%s, %d at the same time, %d still run", took, most, running)
		}
		for i := range 10 {
			if calls[i] != 1 {
				t.Errorf("%d calls of %d", calls[i], i)
			}
		}
	})
}
