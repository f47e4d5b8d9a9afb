package holdfasttest

import (
	"fmt"
	"sync"

	"github.com/holdfast-go/holdfast/driver"
)

// Step makes one step of a service: it calls do, which changes the world, and returns its error. A step whose do
// returns nil has taken effect. A guard at the resource refuses a step with an error.
type Step func(name string, do func() error) error

// Service is one run of an instance of a service from its start to its end, with a Locker of its own on the store.
type Service func(s *Store, step Step) error

// Finding is a step that took effect while the service held no lock.
type Finding struct {
	// Step is the first such step.
	Step string
	// Lost is the step at which the lock was lost. It is empty if the service held no lock at all.
	Lost string
	// Within is set if the lock was lost while the service made the step: after its last look at the context and
	// before the effect, as by a pause of the process. Only a guard at the resource refuses such a step; see package
	// fence. Otherwise the lock was lost after the step, and the service did not look at its context before the next
	// one.
	Within bool
}

// String describes the finding in a sentence.
func (f Finding) String() string {
	switch {
	case f.Lost == "":
		return fmt.Sprintf("step %q took effect, and the service held no lock", f.Step)
	case f.Within:
		return fmt.Sprintf("the lock was lost within step %q, and step %q took effect", f.Lost, f.Step)
	}
	return fmt.Sprintf("the lock was lost after step %q, and step %q took effect", f.Lost, f.Step)
}

// maxSteps is the largest number of steps of a service.
const maxSteps = 1000

// LoseAtEachStep runs a service again and again, twice for each of its steps, and returns the steps that took effect
// without a lock. In one run the lock is lost within the step, in the other one after it. The loss ends every lock
// of the store, and a second instance of the service runs from start to end. Then the first one goes on.
//
// start prepares the resources of a run, and returns a service that uses them. Both instances of a run are calls of
// that service.
//
// An error reports that the service fails without a loss, that the second instance fails, or that a run has more than
// 1000 steps. The error of an instance that has lost its lock does not matter.
func LoseAtEachStep(start func() Service) ([]Finding, error) {
	var all []Finding
	for at := -1; ; at++ { // the loss: within step at/2, or after it
		r := &stepRun{at: at, store: NewStore()}
		r.service = start()
		err := r.service(r.store, r.step)
		switch {
		case r.err != nil:
			return all, r.err
		case at < 0 && err != nil:
			return all, fmt.Errorf("holdfasttest: the service fails without a loss: %w", err)
		}
		all = append(all, r.found...)
		if at >= 0 && !r.reached {
			return all, nil
		}
	}
}

// stepRun is one run of a service, with one loss.
type stepRun struct {
	store   *Store
	service Service
	at      int

	mu      sync.Mutex
	steps   int
	reached bool   // the service came to the place of the loss
	lost    string // the step at which a lock was lost
	found   []Finding
	err     error
}

// step makes a step of the first instance.
func (r *stepRun) step(name string, do func() error) error {
	r.mu.Lock()
	n := r.steps
	r.steps++
	if n >= maxSteps && r.err == nil {
		r.err = fmt.Errorf("holdfasttest: the service makes more than %d steps", maxSteps)
	}
	err := r.err
	r.mu.Unlock()
	if err != nil {
		return err
	}
	if r.at == 2*n {
		r.lose(name)
	}
	unlocked := len(r.store.held()) == 0
	if err = do(); err == nil && unlocked {
		r.mu.Lock()
		// The run without a loss has found what happens before one.
		if len(r.found) == 0 && (r.at < 0 || r.lost != "") {
			r.found = append(r.found, Finding{Step: name, Lost: r.lost, Within: r.at%2 == 0})
		}
		r.mu.Unlock()
	}
	if r.at == 2*n+1 {
		r.lose(name)
	}
	return err
}

// lose ends every lock, and runs the second instance.
func (r *stepRun) lose(step string) {
	held := r.store.held()
	for _, name := range held {
		_ = r.store.Script().Lose(name, driver.CauseTaken) // the holder may have released it just now
	}
	err := r.service(r.store.Client(), func(_ string, do func() error) error { return do() })
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.reached = true; len(held) > 0 {
		r.lost = step
	}
	if err != nil {
		r.err = fmt.Errorf("holdfasttest: the second instance, after a loss at step %q, fails: %w", step, err)
	}
}
