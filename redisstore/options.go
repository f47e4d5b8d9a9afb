package redisstore

import (
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

// Option changes how a store is opened.
type Option func(*config)

type config struct {
	namespace string
	replicas  int
	patience  time.Duration
	insist    bool
	layout    Layout
	fairWait  time.Duration
}

// The limits of the options.
const (
	maxReplicas    = 100
	defaultReplica = time.Second
	maxReplicaWait = time.Minute
)

// Namespace keeps the names of this store apart from those of stores that were
// opened with another namespace on the same server. The default is empty.
func Namespace(ns string) Option { return func(c *config) { c.namespace = ns } }

// WaitReplicas makes a grant count only when n replicas have acknowledged it,
// within a time: default 1 s, at most a minute. One that they have not is undone,
// and the request is answered with an error of code CodeUnavailable. Renewals count
// in the same way. It takes a connection of its own for each request under way,
// and a round trip more.
func WaitReplicas(n int, within time.Duration) Option {
	return func(c *config) { c.replicas, c.patience = n, within }
}

// Insist accepts a server that may lose locks by its configuration: one whose
// maxmemory-policy evicts keys. The guarantees then say so.
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
	if c.replicas > 0 && c.patience == 0 {
		c.patience = defaultReplica
	}
	if c.patience != 0 && (c.patience < time.Millisecond || c.patience > maxReplicaWait) {
		return c, driver.Errorf(driver.CodeInvalid, "redisstore: replica wait %s: give 1ms to %s", c.patience, maxReplicaWait)
	}
	return c, nil
}
