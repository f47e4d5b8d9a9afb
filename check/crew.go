//go:build linux || darwin

package check

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

// crew is the set of workers of a round.
type crew struct {
	cfg    *Config
	target *Target
	open   func(context.Context) (driver.Store, error)
	round  int
	dir    string      // of the round's histories
	regs   string      // the directory of the registers
	log    *historyLog // the coordinator's
	// waitTimeout is the time for which waiters may wait at the end.
	waitTimeout time.Duration

	mu       sync.Mutex
	members  []*member
	logs     []string // the paths of all histories
	failures []error
}

// member is one worker: a process that may be killed and started again, or a part
// of this process.
type member struct {
	mu     sync.Mutex
	index  int
	life   int      // the number of the present incarnation, from 1
	proc   *process // nil for a part of this process
	worker *worker  // nil for a process, like log
	log    *historyLog
}

func (m *member) name() string { return workerName(m.index, m.life) }

func (c *crew) start(ctx context.Context) error {
	c.target.pauseHolder = c.pauseHolder
	for i := range c.cfg.Workers {
		m := &member{index: i}
		c.members = append(c.members, m)
		if err := c.launch(ctx, m); err != nil {
			return err
		}
	}
	return nil
}

// history returns the path of the history of a worker's present incarnation.
func (c *crew) history(m *member) string { return filepath.Join(c.dir, m.name()+".jsonl") }

// launch begins the next incarnation of a worker.
func (c *crew) launch(ctx context.Context, m *member) error {
	m.life++
	path := c.history(m)
	c.mu.Lock()
	c.logs = append(c.logs, path)
	c.mu.Unlock()
	if c.target.URL != "" {
		a := &assignment{
			Config: *c.cfg, URL: c.target.URL, Round: c.round, Index: m.index, Life: m.life, Dir: c.dir, Registers: c.regs,
		}
		if c.target.ofWorker != nil {
			a.URL = c.target.ofWorker(m.index)
		}
		if c.target.gateway != nil {
			a.Gateway = c.target.gateway(m.index)
			a.Config.Long = max(a.Config.Long, gatewayLong)
		}
		p, err := a.begin(ctx)
		if err == nil {
			m.proc = p
		}
		return err
	}
	log, err := newLog(path, m.name())
	if err != nil {
		return err
	}
	m.log = log
	m.worker = c.cfg.newWorker(c.round, m.index, m.life, log, inFiles(c.regs), c.open)
	return labelled(ctx, c.dir, m.worker.start)
}

func (c *crew) fail(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.failures = append(c.failures, err)
}

// over reports whether ctx has ended or is about to end. A connection uses ctx's deadline,
// and its timer may fire just before ctx's own.
func over(ctx context.Context) bool {
	deadline, ok := ctx.Deadline()
	return ctx.Err() != nil || ok && !time.Now().Before(deadline)
}

// inject carries out one fault from its beginning to its end. When ctx ends, inject ends
// the fault early.
func (c *crew) inject(ctx context.Context, f Fault) error {
	for i := range c.target.Faults {
		if sf := &c.target.Faults[i]; sf.Kind == f.Kind {
			return c.injectStoreFault(ctx, sf, f)
		}
	}
	if f.Kind == faultBreak {
		return c.breakOne(ctx, f)
	}
	return c.injectWorkerFault(ctx, c.members[f.Worker], f)
}

// injectStoreFault carries out a fault of the store, unless admit reports that it cannot begin now.
// If Begin fails because ctx ended, that is no failure, and injectStoreFault still calls End.
func (c *crew) injectStoreFault(ctx context.Context, sf *StoreFault, f Fault) error {
	if sf.admit != nil && !sf.admit() {
		return nil
	}
	e := Event{K: kindFault, Fault: f.Kind, Early: sf.Early, Takes: int64(sf.Takes), Rewinds: sf.Rewinds, Loses: sf.Loses || sf.Rewinds, KeepsOrder: sf.KeepsOrder}
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
	interrupted := err != nil && over(ctx)
	if interrupted {
		err = nil
	}
	if err == nil && sf.End != nil {
		if !interrupted {
			sleep(ctx, f.For)
		}
		err = sf.End(context.WithoutCancel(ctx), f)
	}
	e.K, e.T = kindHealed, 0
	c.log.Add(e)
	return err
}

// injectWorkerFault carries out a fault of a worker or of its link. At most one such fault at a
// time affects a worker.
func (c *crew) injectWorkerFault(ctx context.Context, m *member, f Fault) error {
	for !m.mu.TryLock() { // a goroutine that waits in Lock stops the fake time of a simulation
		time.Sleep(time.Millisecond)
	}
	defer m.mu.Unlock()
	e := Event{W: m.name(), For: int64(f.For)}
	switch f.Kind {
	case faultKill:
		e.K = kindKill
		c.log.Add(e)
		m.proc.kill()
		sleep(ctx, f.For)
		return c.launch(context.WithoutCancel(ctx), m)
	case faultPause:
		resume, err := c.pause(m, f.For)
		if err != nil {
			return err
		}
		sleep(ctx, f.For)
		return resume()
	}
	e.K, e.Fault = kindFault, f.Kind
	c.log.Add(e)
	err := m.order(ctx, f)
	if err == nil && f.Kind != faultClose && f.Kind != faultVanish {
		sleep(ctx, f.For)
		err = m.order(context.WithoutCancel(ctx), Fault{Kind: faultHeal})
	}
	e.K, e.T = kindHealed, 0
	c.log.Add(e)
	return err
}

// order makes the worker begin the fault. The kind faultHeal ends the present one.
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

// breakOne breaks a lock as an operator does: by the token that an inspection shows. An error is no
// failure of the check, because other faults may affect the server at the same time.
func (c *crew) breakOne(ctx context.Context, f Fault) error {
	s, err := c.open(ctx)
	if err != nil {
		return nil // the server may be demoted now, and refuses clients
	}
	defer s.Close(context.WithoutCancel(ctx))
	ctx, cancel := context.WithTimeout(ctx, f.For)
	defer cancel()
	g, err := s.Guarantees(ctx)
	if err != nil {
		return nil // the server cannot be reached now
	}
	st, err := s.(driver.Inspector).Inspect(ctx, f.Name)
	if err != nil || len(st.Holders) == 0 {
		return nil
	}
	e := Event{K: kindFault, Fault: faultBreak, Name: f.Name, Token: st.Holders[0].Token, Early: g.Break == driver.BreakNow}
	c.log.Add(e)
	// The holder may have released the lock meanwhile, or may be stopped. In both cases
	// Break may fail.
	_ = s.(driver.Breaker).Break(ctx, f.Name, e.Token)
	e.K, e.T = kindHealed, 0
	c.log.Add(e)
	return nil
}

// stopAll ends every worker's work and waits for the workers.
func (c *crew) stopAll() {
	var all sync.WaitGroup
	for _, m := range c.members {
		all.Go(func() {
			m.mu.Lock()
			defer m.mu.Unlock()
			if m.proc != nil {
				c.stopProcess(m)
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

func (c *crew) stopProcess(m *member) {
	err := m.proc.order(Fault{Kind: orderStop})
	if err == nil {
		select {
		case <-m.proc.done:
			err = m.proc.err
		case <-time.After(5 * c.waitTimeout):
			err = fmt.Errorf("the worker did not end within %s", 5*c.waitTimeout)
			m.proc.dump()
		}
	}
	if err != nil {
		m.proc.kill()
		c.fail(fmt.Errorf("check: worker %s: %w: %s", m.name(), err, m.proc.output()))
	}
}

// abort kills the worker processes that remain.
func (c *crew) abort() {
	for _, m := range c.members {
		if m.proc != nil {
			m.proc.kill()
		}
	}
}

// written returns the size of the history so far, in bytes.
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
