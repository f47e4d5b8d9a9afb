//go:build linux || darwin

package check

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

// crew are the workers of a round.
type crew struct {
	cfg     *Config
	target  *Target
	open    func(context.Context) (driver.Store, error)
	round   int
	dir     string
	regs    string
	command []string
	log     *Log // the coordinator's
	// patience is how long waiters have at the end.
	patience time.Duration

	mu       sync.Mutex
	members  []*member
	logs     []string
	failures []error
}

// member is one worker: a process that may be killed and started anew, or a part
// of this process.
type member struct {
	mu     sync.Mutex
	index  int
	life   int
	proc   *process
	worker *worker
	log    *Log
}

func (m *member) name() string { return workerName(m.index, m.life) }

func (c *crew) start(ctx context.Context) error {
	for i := range c.cfg.Workers {
		m := &member{index: i}
		c.members = append(c.members, m)
		if err := c.hire(ctx, m); err != nil {
			return err
		}
	}
	return nil
}

// hire begins the next life of a worker.
func (c *crew) hire(ctx context.Context, m *member) error {
	m.life++
	path := filepath.Join(c.dir, m.name()+".jsonl")
	c.mu.Lock()
	c.logs = append(c.logs, path)
	c.mu.Unlock()
	if c.target.URL != "" {
		a := &assignment{
			Config: *c.cfg, URL: c.target.URL, Round: c.round, Index: m.index, Life: m.life, Dir: c.dir, Registers: c.regs,
		}
		p, err := a.begin(ctx, c.command)
		if err == nil {
			m.proc = p
		}
		return err
	}
	log, err := NewLog(path, m.name())
	if err != nil {
		return err
	}
	m.log = log
	m.worker = c.cfg.newWorker(c.round, m.index, m.life, log, c.regs, c.open)
	return labelled(ctx, c.dir, m.worker.start)
}

func (c *crew) fail(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.failures = append(c.failures, err)
}

// over reports whether ctx has ended, or is about to: a connection's deadline, which is
// that of ctx, may pass a moment before ctx notices.
func over(ctx context.Context) bool {
	deadline, ok := ctx.Deadline()
	return ctx.Err() != nil || ok && !time.Now().Before(deadline)
}

// inject does one fault, from its beginning to its end. It ends early with ctx: then a
// beginning that could not be finished is no failure, and what it did is still ended.
func (c *crew) inject(ctx context.Context, f Fault) error {
	m := c.members[f.Worker]
	pause := func() {
		select {
		case <-time.After(f.For):
		case <-ctx.Done():
		}
	}
	for i := range c.target.Faults {
		sf := &c.target.Faults[i]
		if sf.Kind != f.Kind {
			continue
		}
		if sf.Admit != nil && !sf.Admit(f) {
			return nil
		}
		e := Event{K: KindFault, Fault: f.Kind, Early: sf.Early, Takes: int64(sf.Takes), Rewinds: sf.Rewinds, Loses: sf.Loses || sf.Rewinds}
		if sf.Detail != nil {
			e.Note = sf.Detail(f)
		}
		if sf.Early && !sf.All {
			e.Name = f.Name
		}
		if sf.End != nil {
			e.For = int64(f.For)
		}
		c.log.Add(e)
		err := sf.Begin(ctx, f)
		early := err != nil && over(ctx)
		if early {
			err = nil
		}
		if err == nil && sf.End != nil {
			if !early {
				pause()
			}
			err = sf.End(context.WithoutCancel(ctx), f)
		}
		e.K, e.T = KindHealed, 0
		c.log.Add(e)
		return err
	}
	if f.Kind == faultBreak {
		return c.breakOne(ctx, f)
	}
	// A fault of one worker: it has one at a time.
	m.mu.Lock()
	defer m.mu.Unlock()
	e := Event{W: m.name(), For: int64(f.For)}
	switch f.Kind {
	case faultKill:
		e.K = KindKill
		c.log.Add(e)
		m.proc.kill()
		pause()
		return c.hire(context.WithoutCancel(ctx), m)
	case faultPause:
		e.K = KindPause
		c.log.Add(e)
		if err := m.proc.signal(syscall.SIGSTOP); err != nil {
			return err
		}
		pause()
		err := m.proc.signal(syscall.SIGCONT)
		e.K = KindResume
		c.log.Add(e)
		return err
	}
	e.K, e.Fault = KindFault, f.Kind
	c.log.Add(e)
	err := m.order(ctx, f)
	if err == nil && f.Kind != faultClose && f.Kind != faultVanish {
		pause()
		err = m.order(context.WithoutCancel(ctx), Fault{Kind: faultHeal})
	}
	e.K, e.T = KindHealed, 0
	c.log.Add(e)
	return err
}

func (m *member) order(ctx context.Context, f Fault) error {
	if m.proc != nil {
		err := m.proc.order(f)
		if err != nil {
			err = fmt.Errorf("worker %s has ended: %w: %s", m.name(), err, m.proc.output())
		}
		return err
	}
	return m.worker.inject(ctx, f)
}

// breakOne takes a lock away as an operator would: by the token that an
// inspection shows.
func (c *crew) breakOne(ctx context.Context, f Fault) error {
	s, err := c.open(ctx)
	if err != nil {
		return nil // its server is being demoted just now
	}
	defer s.Close(context.WithoutCancel(ctx))
	ctx, cancel := context.WithTimeout(ctx, f.For)
	defer cancel()
	g, err := s.Guarantees(ctx)
	if err != nil {
		return nil // unreachable just now
	}
	st, err := s.(driver.Inspector).Inspect(ctx, f.Name)
	if err != nil || len(st.Holders) == 0 {
		return nil
	}
	e := Event{K: KindFault, Fault: faultBreak, Name: f.Name, Token: st.Holders[0].Token, Early: g.Break == driver.BreakNow}
	c.log.Add(e)
	// It may have been released meanwhile, or its holder may be stopped: both are
	// answers.
	_ = s.(driver.Breaker).Break(ctx, f.Name, e.Token)
	e.K, e.T = KindHealed, 0
	c.log.Add(e)
	return nil
}

// dismiss lets every worker come to its end and waits for that.
func (c *crew) dismiss() {
	var all sync.WaitGroup
	for _, m := range c.members {
		all.Go(func() {
			m.mu.Lock()
			defer m.mu.Unlock()
			if m.proc != nil {
				c.dismissProcess(m)
				return
			}
			if m.worker == nil {
				return
			}
			m.worker.finish()
			if err := m.log.Close(); err != nil {
				c.fail(err)
			}
		})
	}
	all.Wait()
}

func (c *crew) dismissProcess(m *member) {
	err := m.proc.order(Fault{Kind: "stop"})
	if err == nil {
		select {
		case <-m.proc.done:
			err = m.proc.err
		case <-time.After(5 * c.patience):
			err = fmt.Errorf("it did not end within %s", 5*c.patience)
			m.proc.dump()
		}
	}
	if err != nil {
		m.proc.kill()
		c.fail(fmt.Errorf("check: worker %s: %w: %s", m.name(), err, m.proc.output()))
	}
}

// abort ends what is left of the workers, without ceremony.
func (c *crew) abort() {
	for _, m := range c.members {
		if m.proc != nil {
			m.proc.kill()
		}
	}
}

// written is how much history there is so far.
func (c *crew) written() (n int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, path := range c.logs {
		if st, err := os.Stat(path); err == nil {
			n += st.Size()
		}
	}
	return n
}
