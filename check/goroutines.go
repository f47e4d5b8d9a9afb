//go:build linux || darwin

package check

import (
	"context"
	"fmt"
	"runtime/pprof"
	"strings"
	"time"
)

// labelled runs f and labels every goroutine that f starts, directly or not. The label
// separates these goroutines from others of this process.
func labelled(ctx context.Context, id string, f func(context.Context) error) (err error) {
	pprof.Do(ctx, pprof.Labels(goroutineLabel, id), func(ctx context.Context) { err = f(ctx) })
	return err
}

const goroutineLabel = "holdfast-check"

// goroutines returns the stacks of holdfast's goroutines with the label id, except those of package
// check.
func goroutines(id string) []string {
	var b strings.Builder
	if err := pprof.Lookup("goroutine").WriteTo(&b, 1); err != nil {
		return []string{err.Error()}
	}
	label := fmt.Sprintf("%q:%q", goroutineLabel, id)
	var left []string
	for _, stack := range strings.Split(b.String(), "\n\n") {
		if !strings.Contains(stack, label) || strings.Contains(stack, "github.com/holdfast-go/holdfast/check.") {
			continue
		}
		var frames []string
		for _, line := range strings.Split(stack, "\n") {
			if fields := strings.Fields(line); len(fields) > 2 && strings.Contains(fields[2], "github.com/holdfast-go/holdfast") {
				frames = append(frames, fields[2])
			}
		}
		if len(frames) > 0 {
			left = append(left, strings.Join(frames, " in "))
		}
	}
	return left
}

// leftGoroutines waits up to 2 s for goroutines that are about to end, and returns those that remain.
func leftGoroutines(id string) []string {
	left, _ := leftSoon(2*time.Second, func(context.Context) ([]string, error) { return goroutines(id), nil })(context.Background())
	return left
}
