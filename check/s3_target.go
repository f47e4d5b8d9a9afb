//go:build linux || darwin

package check

import (
	"context"
	"path/filepath"
	"slices"

	"github.com/holdfast-go/holdfast/internal/servers"
)

func init() { locals["s3"] = s3Target }

// s3Target starts a server of S3 with a bucket. The workers' binary must import s3store.
func s3Target(ctx context.Context, dir string, t *Target) error {
	s, err := servers.StartS3(ctx, filepath.Join(dir, "s3"))
	if err != nil {
		return err
	}
	t.onClose(s.Kill)
	p, err := t.proxy(s.Address)
	if err != nil {
		return err
	}
	one := oneOf([]*servers.S3{s})
	t.URL = servers.S3URL(p.Address())
	t.Faults = OneAtATime(slices.Concat(proxyFaults(p), []StoreFault{refuseNew([]*servers.Proxy{p}),
		pauseFault(faultPauseServer, one), pauseFault(faultStall, one), killFault(faultKillServer, one)}))
	return nil
}
