package main

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"time"
)

const loneWork = "lone"

// lonePause is the pause before each pair in the second half of the lone pairs.
const lonePause = 2 * time.Millisecond

// measureLone measures the pair of one goroutine, on a name that no other client uses. A request takes up to three times
// as long while a core sleeps, so only pairs of one loop are comparable: the contenders take turns pair by pair, in
// random order. It prints medians, and the ratio of the speed to that of the best peer.
func measureLone(s store, address string) error {
	var all []*contender
	var clients []client
	for i := range s.contenders {
		c := &s.contenders[i]
		if c.limit || !c.chosen() {
			continue
		}
		opened, err := c.open(address)
		if err != nil {
			return fmt.Errorf("%s: %w", c.name, err)
		}
		defer opened.close()
		all, clients = append(all, c), append(clients, opened)
	}
	medians := make([][2]float64, len(all)) // in microseconds, without and with pauses
	best := [2]float64{math.Inf(1), math.Inf(1)}
	for half, pause := range []time.Duration{0, lonePause} {
		times := make([][]float64, len(all))
		for round := range *pairs + 1 {
			for _, i := range rand.Perm(len(all)) {
				time.Sleep(pause)
				began := time.Now()
				_, unlock, err := clients[i].lock(context.Background(), fmt.Sprint("bench-", i))
				if err == nil {
					err = unlock()
				}
				if err != nil {
					return fmt.Errorf("%s: %w", all[i].name, err)
				}
				if round > 0 {
					times[i] = append(times[i], float64(time.Since(began).Nanoseconds())/1e3)
				}
			}
		}
		for i := range all {
			slices.Sort(times[i])
			medians[i][half] = times[i][len(times[i])/2]
			if all[i].peer {
				best[half] = min(best[half], medians[i][half])
			}
		}
	}
	fmt.Printf("\none goroutine, one name, microseconds a pair:\n\n| | median | ratio to the best peer | with pauses of %s | ratio |\n| --- | --- | --- | --- | --- |\n", lonePause)
	for i, m := range medians {
		fmt.Printf("| %s | %.0f | %.2f | %.0f | %.2f |\n", all[i].name, m[0], best[0]/m[0], m[1], best[1]/m[1])
	}
	return nil
}
