package redisstore

import (
	"time"

	"github.com/holdfast-go/holdfast/redisstore/internal/server"
)

// Option changes how a store is opened.
type Option = server.Option

// Namespace separates the names of this store from those of stores with another namespace on the
// same server. The default is empty.
func Namespace(ns string) Option { return func(c *server.Config) { c.Namespace = ns } }

// WaitReplicas makes the store wait for n replicas, 0 to 100, to acknowledge each grant, each
// renewal, and each release of a grant that stays for a minimum hold. within is the timeout: 1 ms to 1 min, and 0 means 1 s. The store rolls back a grant that
// too few replicas acknowledged, and returns an error of code CodeUnavailable. If the rollback is not
// confirmed, the code is CodeUnknown. Each request under way needs a connection of its own, and one
// more round trip.
func WaitReplicas(n int, within time.Duration) Option {
	return func(c *server.Config) { c.Replicas, c.AckTimeout = n, within }
}

// Insist accepts a server whose maxmemory-policy evicts keys. Such a server may lose locks. The
// guarantees then list the eviction.
func Insist() Option { return func(c *server.Config) { c.Insist = true } }
