//go:build linux || darwin

package servers

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// NATS is one server of NATS with JetStream.
type NATS struct {
	*Server
	// Client is the server's HOST:PORT for clients.
	Client string

	route, monitor string
	advertised     string // the others reach the route here
}

// NATSConfig configures servers of NATS.
type NATSConfig struct {
	// Members is the number of servers, of one cluster if there are several. Default 1.
	Members int
	// Dir contains the servers' directories.
	Dir string
	// Settings are further lines of the configuration.
	Settings string
	// Route, unless it is nil, returns the address at which the others reach the route address of a server.
	Route func(server int, address string) (string, error)
}

// StartNATS starts servers and waits until each serves.
func StartNATS(ctx context.Context, c NATSConfig) ([]*NATS, error) {
	program, err := Find("nats-server")
	if err != nil {
		return nil, err
	}
	c.Members = cmp.Or(c.Members, 1)
	return retryIn(ctx, c.Dir, func(dir string) ([]*NATS, error) { return c.start(ctx, program, dir) })
}

func (c NATSConfig) start(ctx context.Context, program, dir string) ([]*NATS, error) {
	all := make([]*NATS, c.Members)
	for i := range all {
		var ports [3]string
		for j := range ports {
			port, err := FreePort()
			if err != nil {
				return nil, err
			}
			ports[j] = fmt.Sprintf("127.0.0.1:%d", port)
		}
		all[i] = &NATS{Client: ports[0], route: ports[1], monitor: ports[2], advertised: ports[1]}
		if c.Route != nil {
			var err error
			if all[i].advertised, err = c.Route(i, ports[1]); err != nil {
				return nil, err
			}
		}
	}
	err := startTogether(all, func(i int, n *NATS) error {
		own := filepath.Join(dir, fmt.Sprintf("n%d", i))
		err := os.MkdirAll(own, 0o700)
		if err == nil {
			err = os.WriteFile(filepath.Join(own, "nats.conf"), []byte(c.config(i, all)), 0o600)
		}
		if err == nil {
			n.Server, err = Start(ctx, Config{Name: fmt.Sprintf("nats-server n%d", i), Dir: own,
				Command: []string{program, "-c", "nats.conf"}, Ready: n.healthy})
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	return all, nil
}

// config returns the configuration of server i.
func (c NATSConfig) config(i int, all []*NATS) string {
	n := all[i]
	config := fmt.Sprintf("server_name: n%d\nlisten: %q\nhttp: %q\njetstream { store_dir: data }\n%s\n",
		i, n.Client, n.monitor, c.Settings)
	if len(all) == 1 {
		return config
	}
	var routes []string
	for j, other := range all {
		if j != i {
			routes = append(routes, fmt.Sprintf("%q", "nats://"+other.advertised))
		}
	}
	return config + fmt.Sprintf("cluster { name: test, listen: %q, advertise: %q, no_advertise: true, routes: [%s] }\n",
		n.route, n.advertised, strings.Join(routes, ", "))
}

// CreateBucket creates a bucket of files, as its clients do.
func (n *NATS) CreateBucket(ctx context.Context, bucket string, replicas int) error {
	settings := fmt.Sprintf(`{"name":"KV_%s","subjects":["$KV.%[1]s.>"],"retention":"limits","storage":"file",`+
		`"num_replicas":%d,"max_msgs_per_subject":1,"discard":"new","allow_direct":true,"allow_rollup_hdrs":true,`+
		`"deny_delete":true}`, bucket, replicas)
	return Until(ctx, func() error { // a cluster that has just started may lack a leader
		answer, err := n.Request(ctx, "$JS.API.STREAM.CREATE.KV_"+bucket, settings)
		if err == nil && strings.Contains(answer, `"error"`) {
			err = errors.New(answer)
		}
		return err
	})
}

// Request sends a request and returns the first answer.
func (n *NATS) Request(ctx context.Context, subject, data string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	c, err := dial(ctx, n.Client)
	if err != nil {
		return "", err
	}
	defer c.Close()
	if _, err := fmt.Fprintf(c, "CONNECT {\"verbose\":false}\r\nSUB answer 1\r\nPUB %s answer %d\r\n%s\r\n",
		subject, len(data), data); err != nil {
		return "", err
	}
	lines := bufio.NewReader(c)
	for {
		line, err := lines.ReadString('\n')
		if err != nil {
			return "", err
		}
		if !strings.HasPrefix(line, "MSG ") {
			continue
		}
		return lines.ReadString('\n')
	}
}

// healthy returns nil if the server has recovered its streams and knows a leader.
func (n *NATS) healthy(ctx context.Context) error { return n.monitored(ctx, "healthz", &struct{}{}) }

// Data returns the directory of the server's streams.
func (n *NATS) Data() string { return filepath.Join(n.cfg.Dir, "data") }

// Leads reports whether the server believes that it leads a stream.
func (n *NATS) Leads(ctx context.Context, stream string) (bool, error) {
	var found struct {
		Accounts []struct {
			Streams []struct {
				Name    string
				Cluster struct{ Leader string }
			} `json:"stream_detail"`
		} `json:"account_details"`
	}
	var self struct {
		Name string `json:"server_name"`
	}
	err := errors.Join(n.monitored(ctx, "varz", &self), n.monitored(ctx, "jsz?streams=true", &found))
	for _, a := range found.Accounts {
		for _, s := range a.Streams {
			if s.Name == stream && s.Cluster.Leader == self.Name {
				return true, err
			}
		}
	}
	return false, err
}

// Reads reports whether the server answers direct gets of a stream. A follower begins some seconds after it has joined.
func (n *NATS) Reads(ctx context.Context, stream string) (bool, error) {
	var found struct {
		Subscriptions []struct{ Subject string } `json:"subscriptions_list"`
	}
	subject := "$JS.API.DIRECT.GET." + stream
	err := n.monitored(ctx, "subsz?subs=true&test="+subject, &found)
	for _, s := range found.Subscriptions {
		if s.Subject == subject {
			return true, err
		}
	}
	return false, err
}

// Received returns how many messages the server has received from its clients and from other servers.
func (n *NATS) Received(ctx context.Context) (int, error) {
	var vars struct {
		Messages int `json:"in_msgs"`
	}
	err := n.monitored(ctx, "varz", &vars)
	return vars.Messages, err
}

func (n *NATS) monitored(ctx context.Context, page string, into any) error {
	return get(ctx, nil, "http://"+n.monitor+"/"+page, into)
}
