//go:build linux || darwin

package check

import (
	"context"
	"encoding/base64"
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/check/servers"
)

// etcdTarget starts etcd. The workers' binary must import etcdstore.
func etcdTarget(members int, heartbeat time.Duration) func(context.Context, string) (*Target, error) {
	return func(ctx context.Context, dir string) (*Target, error) {
		config := servers.EtcdConfig{Members: members, Heartbeat: heartbeat, Disks: true, Dir: filepath.Join(dir, "etcd")}
		cluster, err := servers.StartEtcd(ctx, config)
		if errors.Is(err, servers.ErrNoDisk) {
			config.Disks, config.NoSync = false, true
			cluster, err = servers.StartEtcd(ctx, config)
		}
		if err != nil {
			return nil, err
		}
		var processes []*servers.Server
		for _, m := range cluster {
			processes = append(processes, m.Server)
		}
		var proxies []*servers.Proxy
		var hosts []string
		end := func() error {
			for _, p := range proxies {
				p.Close()
			}
			for _, m := range cluster {
				m.End()
			}
			return nil
		}
		for _, m := range cluster {
			p, err := servers.NewProxy(m.Client)
			if err != nil {
				return nil, errors.Join(err, end())
			}
			proxies, hosts = append(proxies, p), append(hosts, p.Address())
		}
		faults := proxyFaults(proxies...)
		gate, user := &etcdGate{m: cluster[0]}, ""
		if members > 1 {
			leader := func(ctx context.Context) *servers.Server {
				if m := etcdLeader(ctx, cluster); m != nil {
					return m.Server
				}
				return nil
			}
			for _, f := range serverFaults(processes, leader) {
				if f.Kind == "pause-server" { // the paused server may be the leader
					f.Early, f.All = true, true
				}
				faults = append(faults, f)
			}
			faults = append(faults, etcdLeaderFaults(cluster)...)
		} else {
			faults = append(faults, serverFaults(processes, nil)...)
			// The single member has users. Its backups have them, too.
			if err := gate.addUsers(ctx); err != nil {
				return nil, errors.Join(err, end())
			}
			user = etcdUser + ":" + etcdPassword + "@"
			back, err := restoreEtcd(gate, filepath.Join(dir, "backups"))
			if err != nil {
				return nil, errors.Join(err, end())
			}
			faults = append(faults, back, revokeEtcdRight(gate))
		}
		t := &Target{
			URL:    "etcd://" + user + strings.Join(hosts, ",") + "/" + etcdPrefix,
			Faults: oneAtATime(faults),
			Left:   etcdKeys(gate),
			Close:  end,
		}
		return t, nil
	}
}

// etcdLeaderFaults stop the leader's process, or only its disk, for longer than the TTL.
// When the leader continues, it may revoke leases that clients have renewed at its
// successor. The store declares that.
func etcdLeaderFaults(cluster []*servers.Etcd) []StoreFault {
	var hit *servers.Etcd
	fault := func(kind string, begin, end func(*servers.Etcd) error) StoreFault {
		return StoreFault{
			Kind: kind, Early: true, All: true,
			Begin: func(ctx context.Context, _ Fault) error {
				if hit = etcdLeader(ctx, cluster); hit == nil {
					return nil // there is no leader now
				}
				return begin(hit)
			},
			End: func(context.Context, Fault) error {
				if hit == nil {
					return nil
				}
				return end(hit)
			},
		}
	}
	faults := []StoreFault{fault(faultPauseLeader, (*servers.Etcd).Pause, (*servers.Etcd).Cont)}
	if cluster[0].Disk != nil {
		faults = append(faults, fault(faultStallLeader,
			func(m *servers.Etcd) error { m.Disk.Stall(); return nil },
			func(m *servers.Etcd) error { m.Disk.Resume(); return nil }))
	}
	return faults
}

// restoreEtcd restores a member from a backup that was made after the last restore. It
// raises the revision above the old one, as an administrator should (etcdutl snapshot
// restore --bump-revision). Leases and keys made since the backup are gone. Those that
// ended since the backup stand again.
func restoreEtcd(g *etcdGate, dir string) (StoreFault, error) {
	m, n := g.m, 0
	backup := func() string { return filepath.Join(dir, strconv.Itoa(n)) }
	return StoreFault{
		Kind: "restore-backup", Early: true, All: true, Rewinds: true,
		Begin: func(ctx context.Context, _ Fault) error {
			// The restore must complete, even after the round's time.
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 30*time.Second)
			defer cancel()
			before, err := etcdRevision(ctx, g)
			if err != nil {
				return err
			}
			if err := m.Restore(ctx, backup()); err != nil {
				return err
			}
			return raiseRevision(ctx, g, before+100)
		},
		End: func(context.Context, Fault) error {
			err := os.RemoveAll(backup())
			n++
			return errors.Join(err, m.Backup(backup()))
		},
	}, m.Backup(backup())
}

func etcdRevision(ctx context.Context, g *etcdGate) (int64, error) {
	var answer struct {
		Header struct {
			Revision int64 `json:",string"`
		}
	}
	err := g.request(ctx, "/v3/kv/range", `{"key":"AA=="}`, &answer)
	return answer.Header.Revision, err
}

// raiseRevision writes and deletes keys until the revision is reached.
func raiseRevision(ctx context.Context, g *etcdGate, to int64) error {
	const puts = 16
	g.client = &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: puts}}
	defer func() {
		g.client.CloseIdleConnections()
		g.client = nil
	}()
	for {
		at, err := etcdRevision(ctx, g)
		if err != nil || at >= to {
			return err
		}
		errs := make(chan error, puts)
		var writing sync.WaitGroup
		for i := range puts {
			writing.Go(func() {
				key := base64.StdEncoding.EncodeToString([]byte("raise-" + strconv.Itoa(i)))
				for range (to-at)/puts/2 + 1 {
					err := g.request(ctx, "/v3/kv/put", `{"key":"`+key+`"}`, &struct{}{})
					if err == nil {
						err = g.request(ctx, "/v3/kv/deleterange", `{"key":"`+key+`"}`, &struct{}{})
					}
					if err != nil {
						errs <- err
						return
					}
				}
			})
		}
		writing.Wait()
		select {
		case err := <-errs:
			return err
		default:
		}
	}
}

// etcdLeader returns the leader, nil if there is none.
func etcdLeader(ctx context.Context, members []*servers.Etcd) *servers.Etcd {
	for _, m := range members {
		var status struct {
			Header struct {
				Member string `json:"member_id"`
			}
			Leader string
		}
		if m.PID() == 0 || (&etcdGate{m: m}).request(ctx, "/v3/maintenance/status", "{}", &status) != nil {
			continue
		}
		if status.Leader != "" && status.Leader == status.Header.Member {
			return m
		}
	}
	return nil
}

// etcdKeys returns a Target's Left that lists the remaining keys of locks. It waits,
// because the keys of a killed process stand until its leases expire.
func etcdKeys(g *etcdGate) func(context.Context) ([]string, error) {
	return leftSoon(20*time.Second, func(ctx context.Context) (left []string, err error) {
		var found struct{ Kvs []struct{ Key []byte } }
		err = g.request(ctx, "/v3/kv/range", `{"key":"AA==","range_end":"AA==","keys_only":true}`, &found)
		for _, kv := range found.Kvs {
			left = append(left, string(kv.Key))
		}
		return left, err
	})
}
