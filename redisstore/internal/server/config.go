package server

import (
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

// Option changes how a store is opened.
type Option func(*Config)

// Config has the settings of a store.
type Config struct {
	Namespace  string
	Replicas   int
	AckTimeout time.Duration
	Insist     bool
	FairWait   time.Duration // of a layout with a queue of another client
	Exposed    string        // see driver.Exposer
}

// The limits and the default of Replicas and AckTimeout.
const (
	maxReplicas       = 100
	minAckTimeout     = time.Millisecond
	maxAckTimeout     = time.Minute
	defaultAckTimeout = time.Second
)

// Configure returns the settings by options, or an error if one is not allowed. It does not check FairWait.
func Configure(options []Option) (Config, error) {
	var c Config
	for _, o := range options {
		o(&c)
	}
	if err := driver.CheckNamespace(c.Namespace); err != nil {
		return c, driver.Errorf(driver.CodeInvalid, "redisstore: %w", err)
	}
	if c.Replicas < 0 || c.Replicas > maxReplicas {
		return c, driver.Errorf(driver.CodeInvalid, "redisstore: replicas %d: give 0 to %d", c.Replicas, maxReplicas)
	}
	if c.Replicas > 0 && c.AckTimeout == 0 {
		c.AckTimeout = defaultAckTimeout
	}
	if c.AckTimeout != 0 && (c.AckTimeout < minAckTimeout || c.AckTimeout > maxAckTimeout) {
		return c, driver.Errorf(driver.CodeInvalid, "redisstore: replica wait %s: give %s to %s", c.AckTimeout, minAckTimeout, maxAckTimeout)
	}
	return c, nil
}
