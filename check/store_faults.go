//go:build linux || darwin

package check

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/check/servers"
)

// oneAtATime serialises the faults of a store: a killed server cannot be stopped. It leaves
// time to work between two faults.
func oneAtATime(all []StoreFault) []StoreFault {
	var mu sync.Mutex
	var busy bool
	var next time.Time
	done := func(f Fault) {
		mu.Lock()
		defer mu.Unlock()
		busy, next = false, time.Now().Add(f.For/2)
	}
	for i := range all {
		begin, end := all[i].Begin, all[i].End
		all[i].Admit = func(Fault) bool {
			mu.Lock()
			defer mu.Unlock()
			if busy || time.Now().Before(next) {
				return false
			}
			busy = true
			return true
		}
		all[i].Begin = func(ctx context.Context, f Fault) error {
			err := begin(ctx, f)
			if err != nil || end == nil {
				done(f)
			}
			return err
		}
		if end != nil {
			all[i].End = func(ctx context.Context, f Fault) error {
				defer done(f)
				return end(ctx, f)
			}
		}
	}
	return all
}

// proxyFaults disturb the proxies of the servers: one of them or, every third time, all.
func proxyFaults(ps ...*servers.Proxy) []StoreFault {
	fault := func(kind string, disturb func(*servers.Proxy, Fault) error) StoreFault {
		each := func(do func(*servers.Proxy, Fault) error) func(context.Context, Fault) error {
			return func(_ context.Context, f Fault) (err error) {
				some := ps
				if f.N%3 != 0 {
					i := f.N / 3 % len(ps)
					some = ps[i : i+1]
				}
				for _, p := range some {
					err = errors.Join(err, do(p, f))
				}
				return err
			}
		}
		return StoreFault{Kind: kind, Begin: each(disturb), End: each(func(p *servers.Proxy, _ Fault) error { return p.Heal() })}
	}
	return []StoreFault{
		fault("cut-server", func(p *servers.Proxy, _ Fault) error { p.Cut(); return nil }),
		fault("silence-server", func(p *servers.Proxy, _ Fault) error { return p.Silence() }),
		fault("drop-server-answers", func(p *servers.Proxy, _ Fault) error { return p.DropAnswers() }),
		fault("delay-server", func(p *servers.Proxy, f Fault) error { return p.Delay(f.For / 2) }),
	}
}

// Refusal is one command inside a step that a server refuses from Begin to End, while it
// executes the others. Reasons are a missing right, a slot that is being moved, or a full
// memory.
type Refusal struct {
	// Command names it.
	Command    string
	Begin, End func(context.Context) error
}

// Refusals returns the fault of a target that refuses one command at a time.
func Refusals(all ...Refusal) StoreFault {
	one := func(f Fault) *Refusal { return &all[f.N%len(all)] }
	return StoreFault{
		Kind:   "refuse-command",
		Detail: func(f Fault) string { return one(f).Command },
		Begin:  func(ctx context.Context, f Fault) error { return one(f).Begin(ctx) },
		End:    func(ctx context.Context, f Fault) error { return one(f).End(ctx) },
	}
}

// serverFaults stop and kill servers that keep what they have acknowledged: any of them, and
// the one that leader finds.
func serverFaults(members []*servers.Server, leader func(context.Context) *servers.Server) []StoreFault {
	one := func(f Fault) *servers.Server { return members[f.N%len(members)] }
	var killed *servers.Server
	kill := func(s *servers.Server) error {
		if killed = s; s != nil { // else there is no leader now
			s.Kill()
		}
		return nil
	}
	restart := func(ctx context.Context, _ Fault) error {
		if killed == nil {
			return nil
		}
		return killed.Restart(ctx)
	}
	faults := []StoreFault{
		{
			Kind:  "pause-server",
			Begin: func(_ context.Context, f Fault) error { return one(f).Pause() },
			End:   func(_ context.Context, f Fault) error { return one(f).Cont() },
		},
		{Kind: "kill-server", Begin: func(_ context.Context, f Fault) error { return kill(one(f)) }, End: restart},
	}
	if leader != nil {
		faults = append(faults, StoreFault{
			Kind:  "kill-leader",
			Begin: func(ctx context.Context, _ Fault) error { return kill(leader(ctx)) },
			End:   restart,
		})
	}
	return faults
}
