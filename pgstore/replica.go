package pgstore

import (
	"context"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/holdfast-go/holdfast/driver"
)

// errReplica refuses a server in recovery. Such a server grants advisory locks that the clients of
// the primary do not see.
var errReplica = driver.Errorf(driver.CodeUnavailable, "the server is a replica, which grants nothing: give the primary's address")

// onlyPrimary makes pgx skip servers that report that they are replicas. So pgx uses the
// primary of several hosts, also after a failover.
func onlyPrimary(cfg *pgconn.Config) {
	given := cfg.ValidateConnect
	cfg.ValidateConnect = func(ctx context.Context, c *pgconn.PgConn) error {
		if c.ParameterStatus("in_hot_standby") == "on" {
			return errReplica
		}
		if given != nil {
			return given(ctx, c)
		}
		return nil
	}
}

// oneHost reports whether a configuration names one server.
func oneHost(cfg *pgconn.Config) bool {
	for _, f := range cfg.Fallbacks {
		if f.Host != cfg.Host || f.Port != cfg.Port {
			return false
		}
	}
	return true
}
