//go:build linux || darwin

package check

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/storeurl"
)

// The names of the files in a run's directory. They show the round that broke a rule, or
// else the last round.
const (
	HistoryFile = "history.jsonl"
	PageFile    = "report.html"
)

// Run runs a torture test of a store and judges its history. It ends after the first round
// that breaks a rule. An error means that Run could not carry out the check. For a store
// that breaks a rule, Run returns a Report that is not OK. If the store cannot be reached
// at the start, the error matches holdfast.ErrUnavailable. If the store refuses the client,
// the error matches holdfast.ErrRefused. When ctx ends, Run stops the workers and returns
// the cause, without judging their round.
func Run(ctx context.Context, c Config) (_ *Report, err error) {
	if err := c.complete(); err != nil {
		return nil, err
	}
	dir, temporary := c.Dir, c.Dir == ""
	if temporary {
		if dir, err = os.MkdirTemp("", "holdfast-check-"); err != nil {
			return nil, err
		}
	} else if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, badConfig("Dir", "%q: %v", dir, err)
	}
	if dir, err = filepath.Abs(dir); err != nil {
		return nil, err
	}
	work, err := os.MkdirTemp(dir, "work-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(work)
	regs := filepath.Join(work, "registers")
	if err := os.Mkdir(regs, 0o700); err != nil {
		return nil, err
	}
	t, err := c.target(ctx, work)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, t.close()) }()
	run := &run{cfg: &c, target: t, open: t.opener(&c), work: work, regs: regs, dir: dir, began: time.Now(), tokens: map[string]uint64{}}
	report, err := run.rounds(ctx)
	if report != nil {
		report.Dir = dir
		if temporary && report.OK() && err == nil {
			report.Dir = ""
			err = os.RemoveAll(dir)
		}
	}
	return report, err
}

type run struct {
	cfg             *Config
	target          *Target
	open            func(context.Context) (driver.Store, error)
	work, regs, dir string
	began           time.Time
	// tokens has the largest token of each name in earlier rounds.
	tokens map[string]uint64

	mu        sync.Mutex
	faults    int    // the number of faults so far
	lastFault string // in words, for Progress
}

func (r *run) rounds(ctx context.Context) (*Report, error) {
	s, g, err := r.openStore(ctx)
	if err != nil {
		return nil, err
	}
	defer s.Close(context.WithoutCancel(ctx))
	switch {
	case g.MaxTTL == 0 || r.cfg.TTL >= g.MinTTL:
	case r.cfg.anyTTL:
		r.cfg.TTL = g.MinTTL
	default:
		return nil, badConfig("TTL", "%s: the shortest TTL of the %s store is %s", r.cfg.TTL, g.Kind, g.MinTTL)
	}
	kinds, err := r.cfg.chosenFaults(r.kinds(s, &g))
	if err != nil {
		return nil, err
	}
	var total *Report
	for round := 0; ; round++ {
		left := r.cfg.Duration - time.Since(r.began)
		if round > 0 && (left < time.Second || ctx.Err() != nil) {
			if total.Stats.Grants == 0 && ctx.Err() == nil {
				return total, errors.New("check: no lock was granted, so the check proves nothing; see the answers in the history")
			}
			return total, nil
		}
		report, err := r.round(ctx, round, min(r.cfg.length(round), max(left, time.Second)), kinds, s, &g)
		if err != nil {
			return total, err
		}
		if total != nil {
			stats := total.Stats
			stats.add(report.Stats)
			report.Stats = stats
		}
		total = report
		if !report.OK() {
			return total, nil
		}
	}
}

// kinds returns the kinds of faults that apply to the store. It repeats frequent kinds.
func (r *run) kinds(s driver.Store, g *driver.Guarantees) []string {
	var kinds []string
	if r.target.gateway == nil {
		kinds = append(kinds, workerFaults...)
	}
	if r.target.URL != "" {
		kinds = append(kinds, processFaults...)
	} else {
		kinds = append(kinds, goroutineFaults...)
	}
	_, breaks := s.(driver.Breaker)
	if _, shows := s.(driver.Inspector); breaks && shows && g.Break != driver.BreakNone {
		kinds = append(kinds, faultBreak)
	}
	for _, f := range r.target.Faults {
		kinds = append(kinds, slices.Repeat([]string{f.Kind}, max(1, f.Often))...)
	}
	return kinds
}

// FaultKinds lists the faults that apply to the configuration.
func FaultKinds(ctx context.Context, c Config) ([]string, error) {
	if err := c.complete(); err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "holdfast-check-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	t, err := c.target(ctx, dir)
	if err != nil {
		return nil, err
	}
	defer t.close()
	r := &run{cfg: &c, target: t, open: t.opener(&c)}
	s, g, err := r.openStore(ctx)
	if err != nil {
		return nil, err
	}
	defer s.Close(ctx)
	return slices.Compact(r.kinds(s, &g)), nil
}

// round runs the workers for one round, judges the history, and keeps it.
func (r *run) round(ctx context.Context, number int, length time.Duration, kinds []string, s driver.Store, g *driver.Guarantees) (*Report, error) {
	dir := filepath.Join(r.work, fmt.Sprintf("round-%d", number))
	if err := os.Mkdir(dir, 0o700); err != nil {
		return nil, err
	}
	path := filepath.Join(dir, "coordinator.jsonl")
	log, err := newLog(path, "")
	if err != nil {
		return nil, err
	}
	shown := *r.cfg
	shown.URL = redacted(shown.URL)
	plan, _ := json.Marshal(shown) // Config has no type that Marshal refuses
	log.Add(Event{K: kindRun, Note: string(plan), Store: g})
	c := &crew{cfg: r.cfg, target: r.target, open: r.open, round: number, dir: dir, regs: r.regs, waitTimeout: r.cfg.waitTimeout(g), log: log, logs: []string{path}}
	defer c.abort()
	clearMarks(ctx, s)
	if err := c.start(ctx); err != nil {
		return nil, err
	}
	if err := r.runFaults(ctx, c, number, length, kinds); err != nil {
		if ctx.Err() != nil {
			c.stopAll()
		}
		return nil, err
	}
	log.Add(Event{K: kindDrain})
	c.stopAll()
	r.recordLeftovers(log, s, g, dir)
	if err := log.Close(); err != nil {
		return nil, err
	}
	if err := errors.Join(c.failures...); err != nil {
		return nil, err
	}
	events, err := ReadFiles(c.logs...)
	if err != nil {
		return nil, err
	}
	report, found, err := judge(events, Slack)
	if err != nil {
		return nil, err
	}
	r.compareTokens(report, found)
	if err := r.keep(events, found, report); err != nil {
		return nil, err
	}
	return report, os.RemoveAll(dir)
}

// redacted returns a URL without its password, also if the password is in the query.
func redacted(raw string) string {
	u, err := storeurl.Read(raw)
	if err != nil {
		return "unreadable"
	}
	if u.RawQuery != "" {
		u.RawQuery = "..."
	}
	return u.Redacted()
}

// runFaults injects the planned faults. Then it waits without faults until the round ends.
func (r *run) runFaults(caller context.Context, c *crew, number int, length time.Duration, kinds []string) error {
	began := time.Now()
	quiet := quietEnd(r.cfg.TTL, length)
	ctx, cancel := context.WithTimeout(caller, length-quiet)
	defer cancel()
	var running sync.WaitGroup
	failed := make(chan error, 1)
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	plan := r.cfg.faults(number, kinds, length)
	for ended := false; !ended; {
		var next <-chan time.Time
		if len(plan) > 0 {
			next = time.After(time.Until(began.Add(plan[0].At)))
		}
		select {
		case <-next:
			f := plan[0]
			plan = plan[1:]
			r.note(f)
			running.Go(func() {
				if err := c.inject(ctx, f); err != nil {
					select {
					case failed <- fmt.Errorf("check: fault %s: %w", f.Kind, err):
					default:
					}
				}
			})
		case <-tick.C:
			r.progress(c, number)
		case err := <-failed:
			cancel()
			running.Wait()
			return err
		case <-ctx.Done():
			ended = true
		}
	}
	running.Wait()
	select {
	case err := <-failed:
		return err
	default:
	}
	c.log.Add(Event{K: kindCalm})
	for end := began.Add(length); time.Until(end) > 0; {
		select {
		case <-tick.C:
			r.progress(c, number)
		case <-time.After(time.Until(end)):
		case <-caller.Done():
			return context.Cause(caller)
		}
	}
	return nil
}

// openTimeout is the timeout of openStore.
const openTimeout = 10 * time.Second

// openStore opens the store and reads from it, so that a run against an unreachable store
// fails at once.
func (r *run) openStore(ctx context.Context) (driver.Store, driver.Guarantees, error) {
	ctx, cancel := context.WithTimeout(ctx, openTimeout)
	defer cancel()
	s, err := r.open(ctx)
	if err != nil {
		return nil, driver.Guarantees{}, storeError(nil, err)
	}
	g, err := s.Guarantees(ctx)
	if i, ok := s.(driver.Inspector); ok && err == nil && r.cfg.URL != "" {
		for _, err = range i.List(ctx, "") {
			if err != nil {
				break
			}
		}
	}
	if err != nil {
		_ = s.Close(ctx)
		return nil, g, storeError(s, err)
	}
	return s, g, nil
}

// storeError wraps an error of a store, raw or classified, in the library's error of the
// same meaning. s is nil if the store could not be opened.
func storeError(s driver.Store, err error) error {
	kind := holdfast.ErrUnavailable
	code := driver.CodeOf(err)
	if s != nil && code == driver.CodeUnknown {
		code = s.Classify(err)
	}
	switch code {
	case driver.CodeRefused:
		kind = holdfast.ErrRefused
	case driver.CodeInvalid:
		kind = holdfast.ErrInvalid
	case driver.CodeUnsupported:
		kind = holdfast.ErrUnsupported
	}
	if s == nil && kind == holdfast.ErrUnavailable {
		return fmt.Errorf("%w: %w (the store's Open failed; if no server answers, it must return a store whose calls report that: see driver.Opener)", kind, err)
	}
	return fmt.Errorf("%w: %w", kind, err)
}

func (r *run) note(f Fault) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.faults++
	r.lastFault = fmt.Sprintf("%s, worker %d, %s", f.Kind, f.Worker, f.For.Round(time.Millisecond))
}

func (r *run) progress(c *crew, number int) {
	if r.cfg.Progress == nil {
		return
	}
	r.mu.Lock()
	p := Progress{Elapsed: time.Since(r.began), Total: r.cfg.Duration, Round: number, Faults: r.faults, Last: r.lastFault}
	r.mu.Unlock()
	p.Bytes = c.written()
	r.cfg.Progress(p)
}

// recordLeftovers records what remains at the store after all workers have ended. It waits
// first, because a killed worker may leave a grant until its TTL has passed.
func (r *run) recordLeftovers(log *historyLog, s driver.Store, g *driver.Guarantees, dir string) {
	lease := r.cfg.longest(g) + r.cfg.TTL
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second+lease)
	defer cancel()
	if i, ok := s.(driver.Inspector); ok {
		list := func(ctx context.Context) ([]Event, error) { return listLeftovers(ctx, i), nil }
		left, _ := leftSoon(lease+2*time.Second, list)(ctx)
		for _, e := range left {
			log.Add(e)
		}
	}
	if r.target.Left != nil {
		left, err := r.target.Left(ctx)
		if err != nil {
			left = append(left, "the store cannot be inspected: "+err.Error())
		}
		for _, what := range left {
			log.Add(Event{K: kindLeft, Note: what})
		}
	}
	if r.target.URL == "" {
		for _, what := range leftGoroutines(dir) {
			log.Add(Event{K: kindLeft, Note: "a goroutine of the library still runs after all Lockers were closed: " + what})
		}
	}
}

// listLeftovers returns an event for each name that has a holder or a waiter now, and for an
// error of the store.
func listLeftovers(ctx context.Context, i driver.Inspector) (left []Event) {
	for st, err := range i.List(ctx, "") {
		if err != nil {
			return append(left, Event{K: kindLeft, Note: "the store cannot be inspected: " + err.Error()})
		}
		if what, id := standing(st, func(driver.Owner) bool { return true }); what != "" {
			left = append(left, Event{K: kindLeft, Name: st.Name, ID: id, Note: fmt.Sprintf("%s of %q still exists after all workers have ended", what, st.Name)})
		}
	}
	return left
}

// compareTokens requires that a round's tokens exceed those of earlier rounds. All clients
// end between two rounds.
func (r *run) compareTokens(report *Report, c *collected) {
	largest := map[string]uint64{}
	for name, h := range c.names {
		for _, q := range h.requests {
			// A rewound store repeats tokens. Its grant may be much older than the answer.
			if q.token == 0 || c.rewound(q.sent, q.answer) {
				continue
			}
			if before := r.tokens[name]; q.token <= before {
				report.add(Violation{Rule: RuleTokens, Name: name, Excerpt: q.story(),
					Text: fmt.Sprintf("tokens of %q do not rise across restarts: %s got token %d, but an earlier round granted token %d", name, q.worker, q.token, before)})
			}
			largest[name] = max(largest[name], q.token)
		}
	}
	for n, t := range largest {
		r.tokens[n] = max(r.tokens[n], t)
	}
}

// keep writes the round's history and its page into the run's directory.
func (r *run) keep(events []Event, c *collected, report *Report) error {
	path := filepath.Join(r.dir, HistoryFile)
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	log, err := newLog(path, "")
	if err != nil {
		return err
	}
	if err := log.addAll(events); err != nil {
		return err
	}
	page, err := os.Create(filepath.Join(r.dir, PageFile))
	if err != nil {
		return err
	}
	if err := renderPage(page, c, report); err != nil {
		page.Close()
		return err
	}
	return page.Close()
}
