package redlock

import (
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

// Option changes how a store is opened. All clients of a fleet use the same servers, [MaxTTL],
// [Skew] and [Redsync].
type Option func(*config)

type config struct {
	namespace                   string
	maxTTL, skew                time.Duration
	redsync, fresh, unprotected bool
}

// Limits and defaults of the options.
const (
	maxServers    = 15
	defaultMaxTTL = time.Minute
	defaultSkew   = 500 * time.Millisecond
	minTTL        = 10 * time.Millisecond
	mostTTL       = 24 * time.Hour
	minSkew       = 10 * time.Millisecond
	mostSkew      = 10 * time.Second
)

// Namespace separates the names of this store from those of others on the same servers: at most
// 128 bytes of UTF-8. The default is empty.
func Namespace(ns string) Option { return func(c *config) { c.namespace = ns } }

// MaxTTL sets the longest TTL that the fleet grants, 10 ms to 24 h. A restarted server is
// withheld for at least that time. The default is one minute. The servers store the MaxTTL with
// which they were admitted, and refuse a client with a longer one.
func MaxTTL(d time.Duration) Option { return func(c *config) { c.maxTTL = d } }

// Skew sets the tolerated difference between a server's clock and that of the majority, 10 ms to
// 10 s. A vote stands longer than its TTL, by twice the Skew. A server does not vote for a
// request that arrives later than Skew after its sending. The default is 500 ms.
func Skew(d time.Duration) Option { return func(c *config) { c.skew = d } }

// Redsync writes locks at the keys that redsync uses: the name itself, after the namespace and a
// colon if there is a namespace.
func Redsync() Option { return func(c *config) { c.redsync = true } }

// Fresh admits the servers of a new fleet at once, if all answer and none has state of holdfast.
// That is unsafe only if all servers have lost their data at once while clients held locks.
// Without Fresh the servers are first withheld for at least [MaxTTL].
func Fresh() Option { return func(c *config) { c.fresh = true } }

// Unprotected lets servers vote that have lost their state. Use it only in a test that shows
// what the protection prevents.
func Unprotected() Option { return func(c *config) { c.unprotected = true } }

func configure(options []Option) (config, error) {
	c := config{maxTTL: defaultMaxTTL, skew: defaultSkew}
	for _, o := range options {
		o(&c)
	}
	if err := driver.CheckNamespace(c.namespace); err != nil {
		return c, driver.Errorf(driver.CodeInvalid, "redlock: %w", err)
	}
	if c.maxTTL < minTTL || c.maxTTL > mostTTL {
		return c, driver.Errorf(driver.CodeInvalid, "redlock: max_ttl %s: give %s to %s", c.maxTTL, minTTL, mostTTL)
	}
	if c.skew < minSkew || c.skew > mostSkew {
		return c, driver.Errorf(driver.CodeInvalid, "redlock: skew %s: give %s to %s", c.skew, minSkew, mostSkew)
	}
	return c, nil
}
