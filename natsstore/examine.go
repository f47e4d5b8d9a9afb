package natsstore

import (
	"context"
	"fmt"
	"strconv"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/examine"
)

var checks = examine.Table{
	examine.Costs("replicas", "a bucket with 3 or 5 replicas",
		"locks are unavailable while the server of a bucket with one is down, and an even number tolerates no more than one less",
		"nats stream edit KV_BUCKET --replicas=3, and replicas=3 in the URL", examine.NoMajority("replicas")),
	examine.Costs("peers", "replicas that are all current", "the bucket tolerates one failure less", "start the server",
		examine.Given("peers")),
	examine.Costs("servers", "the servers of all replicas in the URL", "if those of the URL are down, locks are unavailable",
		"name all servers in the URL", examine.Fewer("servers in the URL", "replicas")),
	examine.Costs("space", "less than four fifths of the bucket's limit in use", "a full bucket refuses locks",
		"raise the limit, or delete records of names that are free", examine.Full("bytes", "limit", 80)),
}

// Checks implements driver.Examiner.
func (b *bucket) Checks() []driver.Check { return checks.Checks() }

// Examine implements driver.Examiner. No client can read whether a server has sync_interval: always.
func (b *bucket) Examine(ctx context.Context) ([]driver.Finding, error) {
	info, err := b.info(ctx)
	if err != nil {
		return nil, err
	}
	f := examine.Facts{"replicas": strconv.Itoa(info.Config.Replicas), "servers in the URL": strconv.Itoa(len(b.nc.Opts.Servers)),
		"bytes": strconv.FormatUint(info.State.Bytes, 10), "limit": strconv.FormatInt(info.Config.MaxBytes, 10)}
	if info.Cluster != nil {
		for _, p := range info.Cluster.Replicas {
			if p.Offline || !p.Current {
				f["peers"] += fmt.Sprintf("%s is not current (offline: %t, %d behind) ", p.Name, p.Offline, p.Lag)
			}
		}
	}
	return checks.Find(f), nil
}
