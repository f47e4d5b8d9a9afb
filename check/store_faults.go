//go:build linux || darwin

package check

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/check/servers"
)

// oneAtATime admits one fault of a store at a time, because for example a killed server
// cannot be stopped. Between two faults it leaves the workers time.
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

// proxyFaults disturb one of the servers' proxies or, in a third of the cases, all of them.
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
		fault(faultCutServer, func(p *servers.Proxy, _ Fault) error { p.Cut(); return nil }),
		fault(faultSilenceServer, func(p *servers.Proxy, _ Fault) error { return p.Silence() }),
		fault(faultDropServer, func(p *servers.Proxy, _ Fault) error { return p.DropAnswers() }),
		fault("delay-server", func(p *servers.Proxy, f Fault) error { return p.Delay(f.For / 2) }),
	}
}

// Refusal describes one command that a server refuses between Begin and End. The server
// executes the other commands of the same step. A missing right, a slot that is being
// moved, or a full memory can cause that.
type Refusal struct {
	// Command is the name of the command.
	Command    string
	Begin, End func(context.Context) error
}

// Refusals returns a fault that refuses one of the commands at a time.
func Refusals(all ...Refusal) StoreFault {
	one := func(f Fault) *Refusal { return &all[f.N%len(all)] }
	return StoreFault{
		Kind:   "refuse-command",
		Detail: func(f Fault) string { return one(f).Command },
		Begin:  func(ctx context.Context, f Fault) error { return one(f).Begin(ctx) },
		End:    func(ctx context.Context, f Fault) error { return one(f).End(ctx) },
	}
}

// serverFaults pause and kill servers that keep what they have acknowledged. They also kill
// the server that leader returns, unless leader is nil.
func serverFaults(members []*servers.Server, leader func(context.Context) *servers.Server) []StoreFault {
	one := func(f Fault) *servers.Server { return members[f.N%len(members)] }
	var killed *servers.Server
	kill := func(s *servers.Server) error {
		if killed = s; s != nil { // nil: there is no leader now
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
		{Kind: faultKillServer, Begin: func(_ context.Context, f Fault) error { return kill(one(f)) }, End: restart},
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
