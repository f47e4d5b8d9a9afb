//go:build linux || darwin

package check

import (
	"context"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/internal/servers"
)

// OneAtATime admits one fault of a store at a time, because for example a killed server
// cannot be stopped. Between two faults it leaves the workers time. It skips a kind that has
// begun two times more often than another one that the plan has drawn, so that no kind is left out.
func OneAtATime(all []StoreFault) []StoreFault {
	var mu sync.Mutex
	var busy bool
	var next time.Time
	begun := map[string]int{} // only the kinds that the plan has drawn
	done := func(f Fault) {
		mu.Lock()
		defer mu.Unlock()
		busy, next = false, time.Now().Add(f.For/2)
	}
	for i := range all {
		begin, end := all[i].Begin, all[i].End
		all[i].admit = func() bool {
			mu.Lock()
			defer mu.Unlock()
			kind := all[i].Kind
			begun[kind] += 0
			least := slices.Min(slices.Collect(maps.Values(begun)))
			if busy || time.Now().Before(next) || begun[kind]/max(1, all[i].Often) > least+1 {
				return false
			}
			busy = true
			begun[kind]++
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

// serverProcess is a server that keeps what it has acknowledged when it is killed.
type serverProcess interface {
	Pause() error
	Cont() error
	Kill()
	Restart(context.Context) error
}

// choice returns what a fault affects now: servers, or proxies. If it returns none, the fault has no effect.
type choice[S any] func(context.Context, Fault) ([]S, error)

// oneOf chooses by the random number of the fault, and allOf chooses all.
func oneOf[S any](all []S) choice[S] {
	return func(_ context.Context, f Fault) ([]S, error) { return []S{all[f.N%len(all)]}, nil }
}

func allOf[S any](all []S) choice[S] {
	return func(context.Context, Fault) ([]S, error) { return all, nil }
}

// present chooses the server to which s points when the fault begins.
func present[S any](s *S) choice[S] {
	return func(context.Context, Fault) ([]S, error) { return []S{*s}, nil }
}

// action is a part of a fault: its beginning or its end at one server.
type action[S any] func(context.Context, S, Fault) error

// affect returns a fault that begins at the chosen servers and ends at the same ones. If end is nil, the fault ends
// when it has begun.
func affect[S any](kind string, which choice[S], begin, end action[S]) StoreFault {
	var hit []S
	each := func(ctx context.Context, do action[S], f Fault) (err error) {
		for _, s := range hit {
			err = errors.Join(err, do(ctx, s, f))
		}
		return err
	}
	fault := StoreFault{Kind: kind, Begin: func(ctx context.Context, f Fault) error {
		hit = nil
		chosen, err := which(ctx, f)
		if err != nil {
			return err
		}
		hit = chosen
		return each(ctx, begin, f)
	}}
	if end != nil {
		fault.End = func(ctx context.Context, f Fault) error { return each(ctx, end, f) }
	}
	return fault
}

// simply returns the action of a method without arguments.
func simply[S any](do func(S) error) action[S] {
	return func(_ context.Context, s S, _ Fault) error { return do(s) }
}

func kill[S serverProcess](_ context.Context, s S, _ Fault) error { s.Kill(); return nil }

func restart[S serverProcess](ctx context.Context, s S, _ Fault) error { return s.Restart(ctx) }

// pauseFault stops servers with SIGSTOP, and killFault kills them and starts them again.
func pauseFault[S serverProcess](kind string, which choice[S]) StoreFault {
	return affect(kind, which, simply(S.Pause), simply(S.Cont))
}

func killFault[S serverProcess](kind string, which choice[S]) StoreFault {
	return affect(kind, which, kill[S], restart[S])
}

// onDisks starts servers on disks that a fault can stall, or on ordinary ones if this machine has no others.
func onDisks[S any](start func(disks bool) (S, error)) (S, error) {
	s, err := start(true)
	if errors.Is(err, servers.ErrNoDisk) {
		s, err = start(false)
	}
	return s, err
}

// stallFault stops the writes of servers to their disks.
func stallFault[S interface{ Disk() *servers.Disk }](which choice[S]) StoreFault {
	return affect(faultStallLeader, which,
		func(_ context.Context, s S, _ Fault) error { s.Disk().Stall(); return nil },
		func(_ context.Context, s S, _ Fault) error { s.Disk().Resume(); return nil })
}

// rollingRestart kills the servers of a group one after another, and starts each again before it kills
// the next one.
func rollingRestart[S serverProcess](all []S) StoreFault {
	return StoreFault{Kind: faultRolling, Begin: func(ctx context.Context, _ Fault) error {
		// The last restart must complete, even after the round's time.
		for _, s := range all {
			s.Kill()
			if err := s.Restart(context.WithoutCancel(ctx)); err != nil {
				return err
			}
			if ctx.Err() != nil {
				return nil
			}
		}
		return nil
	}}
}

// restoreFault returns a fault that restores a server from a backup below dir, and makes the first backup. The
// server then lacks what it has acknowledged since the backup. The end of the fault makes a new backup.
func restoreFault(
	dir string, restore func(ctx context.Context, from string) error, backUp func(to string) error,
) (StoreFault, error) {
	n := 0
	backup := func() string { return filepath.Join(dir, strconv.Itoa(n)) }
	return StoreFault{
		Kind: "restore-backup", Early: true, All: true, Rewinds: true, Often: 2,
		// The restore must complete even if the round ends, because the server is needed
		// after the round.
		Begin: func(ctx context.Context, _ Fault) error { return restore(context.WithoutCancel(ctx), backup()) },
		End: func(context.Context, Fault) error {
			err := os.RemoveAll(backup())
			n++
			return errors.Join(err, backUp(backup()))
		},
	}, backUp(backup())
}

// atLeast returns the fault f with a duration of at least d.
func atLeast(d time.Duration, f StoreFault) StoreFault {
	var began time.Time
	begin, end := f.Begin, f.End
	f.Begin = func(ctx context.Context, f Fault) error { began = time.Now(); return begin(ctx, f) }
	f.End = func(ctx context.Context, f Fault) error {
		time.Sleep(time.Until(began.Add(d)))
		return end(ctx, f)
	}
	return f
}

// early returns the fault f, which may take grants of every name away before their TTL.
func early(f StoreFault) StoreFault {
	f.Early, f.All = true, true
	return f
}

// proxyFaults disturb one of the servers' proxies or, in a third of the cases, all of them.
func proxyFaults(all ...*servers.Proxy) []StoreFault {
	some := func(_ context.Context, f Fault) ([]*servers.Proxy, error) {
		if f.N%3 == 0 {
			return all, nil
		}
		i := f.N / 3 % len(all)
		return all[i : i+1], nil
	}
	fault := func(kind string, disturb action[*servers.Proxy]) StoreFault {
		return affect(kind, some, disturb, simply((*servers.Proxy).Heal))
	}
	return []StoreFault{
		fault(faultCutServer, func(_ context.Context, p *servers.Proxy, _ Fault) error { p.Cut(); return nil }),
		fault(faultSilenceServer, simply((*servers.Proxy).Silence)),
		fault(faultDropServer, simply((*servers.Proxy).DropAnswers)),
		fault(faultDelayServer, func(_ context.Context, p *servers.Proxy, f Fault) error { return p.Delay(f.For / 2) }),
	}
}

// refuseNew lets the servers refuse new connections, as servers do that are full. It is for servers whose limit
// cannot be changed while they run. Their proxies refuse the connections.
func refuseNew(all []*servers.Proxy) StoreFault {
	refuse := func(_ context.Context, p *servers.Proxy, _ Fault) error { p.Refuse(); return nil }
	return affect(faultFull, allOf(all), refuse, simply((*servers.Proxy).Heal))
}
