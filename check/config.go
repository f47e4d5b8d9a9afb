//go:build linux || darwin

package check

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/driver"
)

// Config describes a check: the store, the duration, the work and the faults. The zero value
// of a field is its default.
type Config struct {
	// Local is one of the names that Locals returns: a store that the run starts for
	// itself. URL is the URL of an existing store. A Config has exactly one of Local, URL and Target.
	Local, URL string
	// Namespace separates the run from other clients that lock at URL. Default: no
	// namespace.
	Namespace string
	// Target is a store that the caller has prepared.
	Target *Target `json:"-"`
	// Seed decides the schedule of work and of faults: the same seed gives the same
	// schedule. The timing on the machine still varies. Default 1.
	Seed uint64
	// Duration is the length of the run, default 10 s. Round is the length of a round,
	// default 30 s. At the end of a round the run stops all work, judges the history and
	// begins the next round.
	// The first two rounds take at most 5 and 10 s, because a few seconds are enough to
	// show a gross mistake. The check has only one round in memory at a time.
	Duration, Round time.Duration
	// Workers is the number of competing processes (or, in one process, of Lockers), default
	// 4. Lanes is the number of goroutines of each worker, default 3. Names is the number of
	// names that the workers lock, default 3.
	Workers, Lanes, Names int
	// Long is the percentage of locks that a worker holds for up to three times their TTL,
	// so that it must renew them. Default 1, because the other workers wait during such a
	// long lock.
	Long int
	// TTL is the TTL of most locks. Some locks use up to sixteen times as much. Default 600
	// ms, or the store's shortest TTL if that is longer.
	TTL time.Duration
	// Faults are the kinds of faults to inject. Nil selects all that apply, and an empty
	// slice none.
	Faults []string
	// Dir is the directory for histories and the page. Default: a temporary directory that
	// is removed again if every rule held.
	Dir string
	// Run calls Progress with the progress of the run, about once a second.
	Progress func(Progress) `json:"-"`

	anyTTL bool // the caller left TTL unset
}

// Progress describes how much of a run is done.
type Progress struct {
	Elapsed, Total time.Duration
	// Round is the number of the current round. Faults is the number of injected faults so
	// far.
	Round, Faults int
	// Bytes is the size of this round's history so far.
	Bytes int64
	// Last describes the last fault.
	Last string
}

// DefaultTTL is the TTL of most locks if Config.TTL is 0.
const DefaultTTL = 600 * time.Millisecond

// The limits of a configuration.
const (
	maxWorkers = 64
	maxNames   = 1000
)

func (c *Config) complete() error {
	c.Duration = cmp.Or(c.Duration, 10*time.Second)
	c.Round = cmp.Or(c.Round, min(c.Duration, 30*time.Second))
	c.anyTTL = c.TTL == 0
	c.TTL = cmp.Or(c.TTL, DefaultTTL)
	c.Workers, c.Lanes, c.Names = cmp.Or(c.Workers, 4), cmp.Or(c.Lanes, 3), cmp.Or(c.Names, 3)
	c.Long, c.Seed = cmp.Or(c.Long, 1), cmp.Or(c.Seed, 1)
	if err := driver.CheckNamespace(c.Namespace); err != nil {
		return badConfig("", "Namespace: %v", err)
	}
	given := 0
	for _, set := range []bool{c.Local != "", c.URL != "", c.Target != nil} {
		if set {
			given++
		}
	}
	switch {
	case given != 1:
		return badConfig("", "give one of Local (%s), URL and Target", strings.Join(Locals(), ", "))
	case c.Namespace != "" && c.Target != nil:
		return badConfig("Namespace", "%q: give it with Local or URL only; a Target opens its stores itself", c.Namespace)
	case c.Duration < time.Second || c.Duration > 7*24*time.Hour:
		return badConfig("Duration", "%s: from 1s to 168h is allowed", c.Duration)
	case c.Round < time.Second || c.Round > 10*time.Minute:
		return badConfig("Round", "%s: from 1s to 10m is allowed", c.Round)
	case c.TTL < 4*holdfast.MinTTL || c.TTL > time.Minute:
		return badConfig("TTL", "%s: from %s to 1m is allowed", c.TTL, 4*holdfast.MinTTL)
	case c.Workers < 1 || c.Workers > maxWorkers:
		return badConfig("Workers", "%d: from 1 to %d is allowed", c.Workers, maxWorkers)
	case c.Lanes < 1 || c.Lanes > maxWorkers:
		return badConfig("Lanes", "%d: from 1 to %d is allowed", c.Lanes, maxWorkers)
	case c.Long < 1 || c.Long > 100:
		return badConfig("Long", "%d: from 1 to 100 is allowed", c.Long)
	case c.Names < 1 || c.Names > maxNames:
		return badConfig("Names", "%d: from 1 to %d is allowed", c.Names, maxNames)
	}
	return nil
}

// ConfigError reports a mistake in a Config. It matches holdfast.ErrInvalid.
type ConfigError struct {
	// Field is the invalid field, empty if fields contradict one another.
	Field string
	// Text contains the value and what is allowed.
	Text string
}

func badConfig(field, format string, args ...any) error {
	return &ConfigError{Field: field, Text: fmt.Sprintf(format, args...)}
}

func (e *ConfigError) Error() string {
	if e.Field == "" {
		return "check: " + e.Text
	}
	return "check: " + e.Field + " " + e.Text
}

// Is reports whether target is holdfast.ErrInvalid.
func (e *ConfigError) Is(target error) bool { return target == holdfast.ErrInvalid }

// chosenFaults returns the faults of the configuration, or all applicable ones if Faults is nil. It
// returns an error for a fault that is not applicable.
func (c *Config) chosenFaults(applicable []string) ([]string, error) {
	if c.Faults == nil {
		return applicable, nil
	}
	for _, f := range c.Faults {
		if !slices.Contains(applicable, f) {
			return nil, badConfig("Faults", "%q: it does not apply to this store: choose from %s", f, strings.Join(slices.Compact(slices.Clone(applicable)), ", "))
		}
	}
	return c.Faults, nil
}
