//go:build linux || darwin

package servers

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// Etcd is one member of an etcd cluster.
type Etcd struct {
	*Server
	// Client is the member's HOST:PORT for clients. Peer is its HOST:PORT for other
	// members.
	Client, Peer string

	scheme string
	tls    *tls.Config
}

// EtcdConfig configures an etcd cluster.
type EtcdConfig struct {
	// Program is the server's program. Default: the result of Find.
	Program string
	// Members is the number of members. Default 1.
	Members int
	// Heartbeat is the interval of the leader's heartbeats. An election takes ten of them.
	// The shortest lease is 15 of them, rounded up to a second. Default 100 ms, as in etcd.
	Heartbeat time.Duration
	// Dir contains the members' directories.
	Dir string
	// Hosts are the members' addresses, if they are not 127.0.0.1. Enter returns the
	// arguments before a member's own command, for example to run it in a network
	// namespace.
	Hosts []string
	Enter func(member int) []string
	// TLS, unless it is nil, makes the members require TLS of their clients.
	TLS *TLS
	// NoSync lets members answer before a write is on the disk. A member that is killed
	// loses nothing by that. A machine that fails may lose writes.
	NoSync bool
	// Disks gives each member a Disk. It replaces NoSync.
	Disks bool
	// Args are further flags.
	Args []string
}

// TLS names the file of a certificate authority, and the files of a certificate that it has
// signed for the server and its clients.
type TLS struct{ CA, Cert, Key string }

func (t *TLS) config() (*tls.Config, error) {
	pem, err := os.ReadFile(t.CA)
	if err != nil {
		return nil, err
	}
	pair, err := tls.LoadX509KeyPair(t.Cert, t.Key)
	if err != nil {
		return nil, err
	}
	c := &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: x509.NewCertPool(), Certificates: []tls.Certificate{pair}}
	c.RootCAs.AppendCertsFromPEM(pem)
	return c, nil
}

// StartEtcd starts a cluster and waits until every member serves.
func StartEtcd(ctx context.Context, c EtcdConfig) ([]*Etcd, error) {
	if c.Program == "" {
		var err error
		if c.Program, err = Find("etcd"); err != nil {
			return nil, err
		}
	}
	c.Members = max(c.Members, 1)
	c.Heartbeat = cmp.Or(c.Heartbeat, 100*time.Millisecond)
	return retryIn(ctx, c.Dir, func(dir string) ([]*Etcd, error) {
		c.Dir = dir
		return startEtcd(ctx, c)
	})
}

func startEtcd(ctx context.Context, c EtcdConfig) ([]*Etcd, error) {
	members := make([]*Etcd, c.Members)
	var cluster []string
	for i := range members {
		m, err := newEtcd(c, i)
		if err != nil {
			return nil, err
		}
		members[i] = m
		cluster = append(cluster, fmt.Sprintf("m%d=http://%s", i, m.Peer))
	}
	err := startTogether(members, func(i int, m *Etcd) (err error) {
		m.Server, err = Start(ctx, Config{
			Name: fmt.Sprintf("etcd m%d", i), Command: m.command(c, i, cluster),
			Dir: filepath.Join(c.Dir, fmt.Sprintf("m%d", i)), Ready: m.healthy, Disk: c.Disks,
		})
		return err
	})
	if err != nil {
		return nil, err
	}
	return members, nil
}

// JoinEtcd starts one more member of a cluster, which the cluster has added as NAME at the URL of its peer port. NAME is
// m and the number of the present members. JoinEtcd returns when the member accepts connections.
func JoinEtcd(ctx context.Context, c EtcdConfig, members []*Etcd, add func(peer string) error) (m *Etcd, err error) {
	c.Heartbeat = cmp.Or(c.Heartbeat, 100*time.Millisecond)
	if c.Program, err = Find("etcd"); err != nil {
		return nil, err
	}
	if m, err = newEtcd(c, len(members)); err != nil {
		return nil, err
	}
	cluster := []string{fmt.Sprintf("m%d=http://%s", len(members), m.Peer)}
	for i, other := range members {
		cluster = append(cluster, fmt.Sprintf("m%d=http://%s", i, other.Peer))
	}
	if err := add("http://" + m.Peer); err != nil {
		return nil, err
	}
	m.Server, err = Start(ctx, Config{
		Name: "etcd that joins", Command: append(m.command(c, len(members), cluster), "--initial-cluster-state", "existing"),
		Dir: filepath.Join(c.Dir, fmt.Sprintf("m%d", len(members))), Ready: Dial(m.Client),
	})
	return m, err
}

// newEtcd returns member i with free ports. The member is not started.
func newEtcd(c EtcdConfig, i int) (*Etcd, error) {
	host := "127.0.0.1"
	if i < len(c.Hosts) {
		host = c.Hosts[i]
	}
	ports, err := freePorts(2)
	if err != nil {
		return nil, err
	}
	m := &Etcd{Client: fmt.Sprintf("%s:%d", host, ports[0]), Peer: fmt.Sprintf("%s:%d", host, ports[1]), scheme: "http"}
	if c.TLS != nil {
		m.scheme = "https"
		if m.tls, err = c.TLS.config(); err != nil {
			return nil, err
		}
	}
	return m, nil
}

// command returns the command line of member i. The cluster lists all members, as NAME=URL.
func (m *Etcd) command(c EtcdConfig, i int, cluster []string) []string {
	client, peer := m.scheme+"://"+m.Client, "http://"+m.Peer
	command := []string{c.Program,
		"--name", fmt.Sprintf("m%d", i), "--data-dir", "data",
		"--listen-client-urls", client, "--advertise-client-urls", client,
		"--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer,
		"--initial-cluster", strings.Join(cluster, ","), "--initial-cluster-token", c.Dir,
		"--heartbeat-interval", fmt.Sprint(c.Heartbeat.Milliseconds()),
		"--election-timeout", fmt.Sprint(10 * c.Heartbeat.Milliseconds()),
		"--logger", "zap", "--log-level", "warn",
	}
	if c.TLS != nil {
		command = append(command, "--cert-file", c.TLS.Cert, "--key-file", c.TLS.Key, "--trusted-ca-file", c.TLS.CA, "--client-cert-auth")
	}
	if c.NoSync && !c.Disks {
		command = append(command, "--unsafe-no-fsync")
	}
	if c.Enter != nil {
		command = append(c.Enter(i), command...)
	}
	return append(command, c.Args...)
}

// Post sends a request to the member's JSON gateway, in at most 5 s, and decodes the answer. The path is what
// follows /v3/. The token of a user may be empty. A nil client uses a connection for this request only.
func (m *Etcd) Post(ctx context.Context, client *http.Client, path, token, request string, answer any) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	address := m.scheme + "://" + m.Client + "/v3/" + path
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, address, strings.NewReader(request))
	if err != nil {
		return err
	}
	if token != "" {
		req.Header.Set("Authorization", token)
	}
	if client == nil {
		client = oneRequest(m.tls)
	}
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	defer func() {
		_, _ = io.Copy(io.Discard, resp.Body) // reading to the end lets the client reuse the connection
		resp.Body.Close()
	}()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("servers: etcd answers %s to %s", resp.Status, path)
	}
	return json.NewDecoder(resp.Body).Decode(answer)
}

// healthy returns nil if a member has a leader and accepts writes.
func (m *Etcd) healthy(ctx context.Context) error {
	return get(ctx, m.tls, m.scheme+"://"+m.Client+"/health", &struct{}{})
}

// EtcdEndpoints returns the members' client addresses.
func EtcdEndpoints(members []*Etcd) []string {
	var e []string
	for _, m := range members {
		e = append(e, m.Client)
	}
	return e
}
