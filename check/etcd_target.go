//go:build linux || darwin

package check

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"path/filepath"
	"strings"
	"time"

	"github.com/holdfast-go/holdfast/check/servers"
)

// etcdTarget starts etcd. The binary of the workers has to link etcdstore in.
func etcdTarget(members int, heartbeat time.Duration) func(context.Context, string) (*Target, error) {
	return func(ctx context.Context, dir string) (*Target, error) {
		cluster, err := servers.StartEtcd(ctx, servers.EtcdConfig{Members: members, Heartbeat: heartbeat, NoSync: true, Dir: filepath.Join(dir, "etcd")})
		if err != nil {
			return nil, err
		}
		var processes []*servers.Server
		kill := func() {
			for _, p := range processes {
				p.Kill()
			}
		}
		for _, m := range cluster {
			processes = append(processes, m.Server)
		}
		var proxies []*servers.Proxy
		var hosts []string
		end := func() error {
			for _, p := range proxies {
				p.Close()
			}
			kill()
			return nil
		}
		for _, m := range cluster {
			p, err := servers.NewProxy(m.Client)
			if err != nil {
				return nil, errors.Join(err, end())
			}
			proxies, hosts = append(proxies, p), append(hosts, p.Address())
		}
		var leader func(context.Context) *servers.Server
		if members > 1 {
			leader = func(ctx context.Context) *servers.Server { return etcdLeader(ctx, cluster) }
		}
		t := &Target{
			URL:    "etcd://" + strings.Join(hosts, ",") + "/check/",
			Faults: oneAtATime(append(proxyFaults(proxies...), serverFaults(processes, leader)...)),
			Left:   func(ctx context.Context) ([]string, error) { return etcdKeys(ctx, cluster[0]) },
			Close:  end,
		}
		return t, nil
	}
}

// etcdAsk asks a member through its JSON gateway.
func etcdAsk(ctx context.Context, m *servers.Etcd, path, question string, answer any) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+m.Client+path, bytes.NewBufferString(question))
	if err != nil {
		return err
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("check: etcd answers %s to %s", resp.Status, path)
	}
	return json.NewDecoder(resp.Body).Decode(answer)
}

// etcdLeader is nil if there is none.
func etcdLeader(ctx context.Context, members []*servers.Etcd) *servers.Server {
	for _, m := range members {
		var status struct {
			Header struct {
				Member string `json:"member_id"`
			}
			Leader string
		}
		if m.PID() == 0 || etcdAsk(ctx, m, "/v3/maintenance/status", "{}", &status) != nil {
			continue
		}
		if status.Leader != "" && status.Leader == status.Header.Member {
			return m.Server
		}
	}
	return nil
}

// etcdKeys lists what is left of locks. Epoch keys end with the leases of those
// who have left; leases end later than processes that were killed. An election may be
// under way: a look that fails is made again, too.
func etcdKeys(ctx context.Context, m *servers.Etcd) ([]string, error) {
	const everything = `{"key":"AA==","range_end":"AA==","keys_only":true}`
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(50 * time.Millisecond) {
		var found struct{ Kvs []struct{ Key []byte } }
		err := etcdAsk(ctx, m, "/v3/kv/range", everything, &found)
		if err == nil && len(found.Kvs) == 0 {
			return nil, nil
		}
		over := time.Now().After(end)
		if err != nil && (over || ctx.Err() != nil) {
			return nil, err
		}
		if over {
			var left []string
			for _, kv := range found.Kvs {
				left = append(left, string(kv.Key))
			}
			return left, nil
		}
	}
}
