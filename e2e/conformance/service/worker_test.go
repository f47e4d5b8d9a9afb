package service

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/internal/ticks"
	"golang.org/x/sys/unix"
)

// workerEnv contains the task of a replica, which runs this binary.
const workerEnv = "HOLDFAST_SERVICE_WORKER"

func TestMain(m *testing.M) {
	if text := os.Getenv(workerEnv); text != "" {
		var w worker
		err := json.Unmarshal([]byte(text), &w)
		if err == nil {
			err = w.run()
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, "worker:", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	flag.Parse()
	// The stores run side by side: their tests mostly wait for leases.
	if err := flag.Set("test.parallel", "12"); err != nil {
		panic(err)
	}
	code := m.Run()
	for _, f := range atEnd {
		f()
	}
	os.Exit(code)
}

// atEnd runs after all tests.
var atEnd []func()

// worker is a replica's task.
type worker struct {
	Role, URL, Name string
	TTL             time.Duration
	Drain           time.Duration // how long the work continues after SIGTERM
	Ahead, Period   time.Duration // of a schedule: the clock's error, and the interval of ticks
}

// report is a line that a replica writes. Times are those of the machine's monotonic
// clock, which all processes share.
type report struct {
	Kind  string
	Token uint64        `json:",omitempty"`
	At    time.Duration `json:",omitempty"`
	// Live is the last time at which the context had certainly not ended.
	Live   time.Duration `json:",omitempty"`
	Tick   time.Time
	Err    string `json:",omitempty"`
	worker *process
}

func monotonic() time.Duration {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &t); err != nil {
		panic(err)
	}
	return time.Duration(t.Nano())
}

var printing sync.Mutex

func say(r report) {
	if r.At == 0 {
		r.At = monotonic()
	}
	line, err := json.Marshal(r)
	if err != nil {
		panic(err)
	}
	printing.Lock()
	defer printing.Unlock()
	if _, err := os.Stdout.Write(append(line, '\n')); err != nil {
		os.Exit(1) // the test has ended
	}
}

func text(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// run runs the service of docs/service.md. It passes the signal's context to the work, and
// to Close, although the context has ended by then.
func (w *worker) run() error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	go func() { // the replica ends with the test
		_, _ = os.Stdin.Read(make([]byte, 1))
		os.Exit(1)
	}()
	locker, err := holdfast.Open(ctx, w.URL)
	if err != nil {
		return err
	}
	switch w.Role {
	case "close":
		err = w.close(ctx, locker)
	case "keep":
		err = w.keep(ctx, locker)
	case "drain":
		err = w.drain(ctx, locker)
	case "lead":
		err = w.lead(ctx, locker)
	case "every":
		err = w.every(ctx, locker)
	default:
		err = fmt.Errorf("role %q", w.Role)
	}
	closed := locker.Close(ctx)
	say(report{Kind: "closed", Err: text(closed)})
	if errors.Is(err, context.Canceled) {
		return nil
	}
	return err
}

// keep takes a lock and unlocks it. The Locker keeps it.
func (w *worker) keep(ctx context.Context, locker *holdfast.Locker) error {
	k, err := locker.Lock(ctx, w.Name, holdfast.TTL(w.TTL), holdfast.Sticky(holdfast.MaxSticky))
	if err != nil {
		return err
	}
	if err := k.Unlock(); err != nil {
		return err
	}
	say(report{Kind: "keeps", Token: k.Token()})
	<-ctx.Done()
	return nil
}

// close takes a lock, and leaves its release to Close.
func (w *worker) close(ctx context.Context, locker *holdfast.Locker) error {
	k, err := locker.Lock(ctx, w.Name, holdfast.TTL(w.TTL))
	for errors.Is(err, holdfast.ErrUnavailable) {
		k, err = locker.Lock(ctx, w.Name, holdfast.TTL(w.TTL))
	}
	if err != nil {
		return err
	}
	say(report{Kind: "holds", Token: k.Token()})
	<-ctx.Done()
	return nil
}

// drain continues its work after SIGTERM.
func (w *worker) drain(ctx context.Context, locker *holdfast.Locker) error {
	work := func(ctx context.Context) error {
		say(report{Kind: "holds", Token: holdfast.Token(ctx, w.Name)})
		<-ctx.Done()
		say(report{Kind: "drains"})
		drain := holdfast.DrainContext(ctx)
		select {
		case <-time.After(w.Drain):
		case <-drain.Done():
		}
		now := monotonic()
		if drain.Err() == nil {
			say(report{Kind: "drained", At: now, Token: holdfast.Token(ctx, w.Name)})
		} else {
			say(report{Kind: "lost", Err: text(context.Cause(drain))})
		}
		return nil
	}
	err := locker.Do(ctx, w.Name, work, holdfast.TTL(w.TTL))
	for errors.Is(err, holdfast.ErrUnavailable) {
		err = locker.Do(ctx, w.Name, work, holdfast.TTL(w.TTL))
	}
	if errors.Is(err, holdfast.ErrLost) {
		return nil
	}
	return err
}

// lead runs a candidate. A leader reports until when its context was live.
func (w *worker) lead(ctx context.Context, locker *holdfast.Locker) error {
	say(report{Kind: "candidate"})
	return locker.Lead(ctx, w.Name, func(ctx context.Context) error {
		token := holdfast.Token(ctx, w.Name)
		if token == 0 { // the machine stood still, and the lock is lost already
			return ctx.Err()
		}
		say(report{Kind: "leads", Token: token})
		poll := time.NewTicker(time.Millisecond)
		defer poll.Stop()
		var live time.Duration
		for now := monotonic(); ctx.Err() == nil; now = monotonic() {
			live = now
			select {
			case <-poll.C:
			case <-ctx.Done():
			}
		}
		say(report{Kind: "led", Token: token, Live: live, Err: text(context.Cause(ctx))})
		return ctx.Err()
	}, holdfast.TTL(w.TTL))
}

// every serves a schedule.
func (w *worker) every(ctx context.Context, locker *holdfast.Locker) error {
	say(report{Kind: "candidate"})
	for tick, err := range locker.Every(ticks.Ahead(ctx, w.Ahead), w.Name, holdfast.Period(w.Period), holdfast.TTL(w.TTL)) {
		switch {
		case errors.Is(err, holdfast.ErrMissed):
			say(report{Kind: "missed", Tick: tick.Time})
		case err != nil:
			say(report{Kind: "failed", Tick: tick.Time, Err: err.Error()})
		default:
			say(report{Kind: "begins", Tick: tick.Time})
			select {
			case <-time.After(w.Drain):
				say(report{Kind: "served", Tick: tick.Time})
			case <-tick.Context().Done():
			}
		}
	}
	return ctx.Err()
}
