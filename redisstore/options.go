package redisstore

import (
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

// Option changes how a store is opened.
type Option func(*config)

type config struct {
	namespace  string
	replicas   int
	ackTimeout time.Duration
	insist     bool
	layout     Layout
	fairWait   time.Duration
}

// The limits and the default of WaitReplicas.
const (
	maxReplicas       = 100
	minAckTimeout     = time.Millisecond
	maxAckTimeout     = time.Minute
	defaultAckTimeout = time.Second
)

// Namespace separates the names of this store from those of stores with another namespace on the
// same server. The default is empty.
func Namespace(ns string) Option { return func(c *config) { c.namespace = ns } }

// WaitReplicas makes the store wait for n replicas, 0 to 100, to acknowledge each grant and each
// renewal. within is the timeout: 1 ms to 1 min, and 0 means 1 s. The store rolls back a grant that
// too few replicas acknowledged, and returns an error of code CodeUnavailable. If the rollback is not
// confirmed, the code is CodeUnknown. Each request under way needs a connection of its own, and one
// more round trip.
func WaitReplicas(n int, within time.Duration) Option {
	return func(c *config) { c.replicas, c.ackTimeout = n, within }
}

// Insist accepts a server whose maxmemory-policy evicts keys. Such a server may lose locks. The
// guarantees then list the eviction.
func Insist() Option { return func(c *config) { c.insist = true } }

func configure(options []Option) (config, error) {
	var c config
	for _, o := range options {
		o(&c)
	}
	if err := driver.CheckNamespace(c.namespace); err != nil {
		return c, driver.Errorf(driver.CodeInvalid, "redisstore: %w", err)
	}
	if _, known := layouts[c.layout]; !known && c.layout != Native {
		return c, driver.Errorf(driver.CodeInvalid, "redisstore: layout %q: there are %s", c.layout, layoutNames())
	}
	switch {
	case c.fairWait == 0:
		c.fairWait = defaultFairWait
	case c.layout != RedissonFair:
		return c, driver.Errorf(driver.CodeInvalid, "redisstore: fair wait %s: the layout %s has no fair lock", c.fairWait, RedissonFair)
	case c.fairWait < minFairWait || c.fairWait > maxFairWait:
		return c, driver.Errorf(driver.CodeInvalid, "redisstore: fair wait %s: give %s to %s", c.fairWait, minFairWait, maxFairWait)
	}
	if c.replicas < 0 || c.replicas > maxReplicas {
		return c, driver.Errorf(driver.CodeInvalid, "redisstore: replicas %d: give 0 to %d", c.replicas, maxReplicas)
	}
	if c.replicas > 0 && c.ackTimeout == 0 {
		c.ackTimeout = defaultAckTimeout
	}
	if c.ackTimeout != 0 && (c.ackTimeout < minAckTimeout || c.ackTimeout > maxAckTimeout) {
		return c, driver.Errorf(driver.CodeInvalid, "redisstore: replica wait %s: give %s to %s", c.ackTimeout, minAckTimeout, maxAckTimeout)
	}
	return c, nil
}
