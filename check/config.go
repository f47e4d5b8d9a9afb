//go:build linux || darwin

package check

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/driver"
)

// Config says what is tortured, for how long, and how. The zero value of a field
// is its default.
type Config struct {
	// Local starts a store for this run alone: one of Locals. URL names a store
	// that is there already. One of the two is given, or Target.
	Local, URL string
	// Namespace keeps the run apart from others who lock at URL; default none.
	Namespace string
	// Target is a store that the caller has prepared.
	Target *Target `json:"-"`
	// Seed decides the schedule of work and of faults: the same seed, the same
	// schedule. What the machine makes of it varies. Default 1.
	Seed uint64
	// Duration is how long to go on, default 10 s; Round, after how much of it
	// everything is brought to an end, judged and begun anew, default 30 s. The first
	// two rounds are of at most 5 and 10 s: what is grossly wrong shows in seconds. A
	// round is what is kept in memory at once.
	Duration, Round time.Duration
	// Workers is how many processes (or, in one process, Lockers) compete, default
	// 4, and Lanes how many goroutines each has, default 3, for Names names,
	// default 3.
	Workers, Lanes, Names int
	// Long is how many of a hundred locks are held beyond their TTL, up to three
	// times as long, so that they must be renewed. Default 1: long holders keep all other
	// workers from competing.
	Long int
	// TTL is what most locks ask for; some ask for up to sixteen times as much. Default
	// 600 ms, or the store's shortest if that is longer.
	TTL time.Duration
	// Faults are the kinds of faults to inject; nil for all that apply, empty for
	// none.
	Faults []string
	// Dir is where histories and the page go. Default: a temporary directory that
	// is removed again if every rule held.
	Dir string
	// Command starts a worker; default this executable, whose main or TestMain
	// must call MaybeWorker first.
	Command []string `json:"-"`
	// Progress is told, about once a second, how far the run is.
	Progress func(Progress) `json:"-"`

	anyTTL bool // the default was asked for
}

// Progress is how far a run is.
type Progress struct {
	Elapsed, Total time.Duration
	Round, Faults  int
	// Bytes of history so far in this round.
	Bytes int64
	// Last is the last fault, in words.
	Last string
}

// DefaultTTL is what most locks ask for unless the configuration says otherwise.
const DefaultTTL = 600 * time.Millisecond

// The limits of a configuration.
const (
	maxWorkers = 64
	maxNames   = 1000
)

func (c *Config) complete() error {
	def := func(d *time.Duration, v time.Duration) {
		if *d == 0 {
			*d = v
		}
	}
	num := func(n *int, v int) {
		if *n == 0 {
			*n = v
		}
	}
	def(&c.Duration, 10*time.Second)
	def(&c.Round, min(c.Duration, 30*time.Second))
	c.anyTTL = c.TTL == 0
	def(&c.TTL, DefaultTTL)
	num(&c.Workers, 4)
	num(&c.Lanes, 3)
	num(&c.Names, 3)
	num(&c.Long, 1)
	if c.Seed == 0 {
		c.Seed = 1
	}
	if err := driver.CheckNamespace(c.Namespace); err != nil {
		return badConfig("", "Namespace: %v", err)
	}
	given := 0
	for _, is := range []bool{c.Local != "", c.URL != "", c.Target != nil} {
		if is {
			given++
		}
	}
	switch {
	case given != 1:
		return badConfig("", "give one of Local (%s), URL and Target", strings.Join(Locals(), ", "))
	case c.Namespace != "" && c.Target != nil:
		return badConfig("Namespace", "%q: it is for Local and URL, a Target opens its stores itself", c.Namespace)
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

// ConfigError is a mistake in a Config. It matches holdfast.ErrInvalid.
type ConfigError struct {
	// Field is the one that is wrong, empty where they do not go together.
	Field string
	// Text is what was given and what is allowed.
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

// Is makes it match holdfast.ErrInvalid.
func (e *ConfigError) Is(target error) bool { return target == holdfast.ErrInvalid }

// pick keeps of the faults that apply those that are asked for.
func (c *Config) pick(apply []string) ([]string, error) {
	if c.Faults == nil {
		return apply, nil
	}
	for _, f := range c.Faults {
		if !slices.Contains(apply, f) {
			return nil, badConfig("Faults", "%q: it does not apply here: choose from %s", f, strings.Join(apply, ", "))
		}
	}
	return c.Faults, nil
}
