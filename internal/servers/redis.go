//go:build linux || darwin

package servers

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Redis is a redis-server.
type Redis struct {
	*Server
	Port     int
	Password string
	tls      *tls.Config // nil without TLS
}

// RedisTLS returns settings for StartRedis that require TLS with certificates of clients,
// replicas and the nodes of a cluster.
func RedisTLS(t TLS) []string {
	return []string{"--tls-ca-cert-file", t.CA, "--tls-cert-file", t.Cert, "--tls-key-file", t.Key, "--tls-replication", "yes", "--tls-cluster", "yes"}
}

// understand reads from the settings the password and the TLS files that a client needs.
func (r *Redis) understand(settings []string) error {
	var t TLS
	for i := 0; i+1 < len(settings); i++ {
		switch v := settings[i+1]; settings[i] {
		case "--requirepass":
			r.Password = v
		case "--tls-ca-cert-file":
			t.CA = v
		case "--tls-cert-file":
			t.Cert = v
		case "--tls-key-file":
			t.Key = v
		}
	}
	if t.Cert == "" {
		return nil
	}
	var err error
	r.tls, err = t.config()
	return err
}

// listen returns the settings of the server's port.
func (r *Redis) listen() []string {
	if r.tls != nil {
		return []string{"--port", "0", "--tls-port", strconv.Itoa(r.Port)}
	}
	return []string{"--port", strconv.Itoa(r.Port)}
}

// RedisInstalled returns the path of redis-server. If it is missing, the error wraps
// ErrNotInstalled.
func RedisInstalled() (string, error) {
	return find("redis-server", "redis-server")
}

// StartRedis starts a redis-server on a free port of the loopback interface. The settings
// have the form of its command line: "--appendonly", "yes". By default the server writes
// nothing to disk.
func StartRedis(ctx context.Context, dir string, settings ...string) (*Redis, error) {
	return startRedis(ctx, dir, func() ([]string, error) { return settings, nil })
}

// startRedis calls draw before each attempt.
func startRedis(ctx context.Context, dir string, draw func() ([]string, error)) (*Redis, error) {
	return retryStart(ctx, func() (*Redis, error) {
		port, err := FreePort()
		if err != nil {
			return nil, err
		}
		settings, err := draw()
		if err != nil {
			return nil, err
		}
		return startRedisOn(ctx, port, dir, settings)
	})
}

func startRedisOn(ctx context.Context, port int, dir string, settings []string) (*Redis, error) {
	program, err := RedisInstalled()
	if err != nil {
		return nil, err
	}
	r := &Redis{Port: port}
	if err := r.understand(settings); err != nil {
		return nil, err
	}
	command := slices.Concat([]string{program}, r.listen(), []string{"--bind", "127.0.0.1", "--dir", ".",
		"--save", "", "--daemonize", "no", "--logfile", "", "--repl-diskless-sync-delay", "0"}, settings)
	s, err := Start(ctx, Config{
		Name: "redis-server " + filepath.Base(dir), Command: command, Dir: dir,
		Ready: func(ctx context.Context) error {
			answer, err := r.Do(ctx, "PING")
			if err == nil && answer != "PONG" {
				err = fmt.Errorf("PING answers %v", answer)
			}
			return err
		},
	})
	if err != nil {
		return nil, err
	}
	r.Server = s
	return r, nil
}

// Address returns HOST:PORT.
func (r *Redis) Address() string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(r.Port)) }

// Do sends one command on a new connection, with the server's password if it has one. It
// returns the answer: a string, an int64, nil, or a slice of these. An error of the server
// is returned as an error.
func (r *Redis) Do(ctx context.Context, args ...string) (any, error) {
	var d interface {
		DialContext(ctx context.Context, network, address string) (net.Conn, error)
	} = &net.Dialer{}
	if r.tls != nil {
		d = &tls.Dialer{Config: r.tls}
	}
	c, err := d.DialContext(ctx, "tcp", r.Address())
	if err != nil {
		return nil, err
	}
	defer c.Close()
	deadline, ok := ctx.Deadline()
	if !ok {
		deadline = time.Now().Add(10 * time.Second)
	}
	if err := c.SetDeadline(deadline); err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() { _ = c.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	in := bufio.NewReader(c)
	commands := [][]string{args}
	if r.Password != "" {
		commands = [][]string{{"AUTH", r.Password}, args}
	}
	var answer any
	for _, command := range commands {
		if _, err := c.Write(redisRequest(command)); err != nil {
			return nil, err
		}
		if answer, err = redisAnswer(in); err != nil {
			return nil, err
		}
	}
	return answer, nil
}

func redisRequest(args []string) []byte {
	b := fmt.Appendf(nil, "*%d\r\n", len(args))
	for _, a := range args {
		b = fmt.Appendf(b, "$%d\r\n%s\r\n", len(a), a)
	}
	return b
}

// redisError is an error that the server has answered.
type redisError string

func (e redisError) Error() string { return string(e) }

// redisAnswer reads one answer. An error inside an array is one of the array's values, as a string.
func redisAnswer(in *bufio.Reader) (any, error) {
	line, err := in.ReadString('\n')
	if err != nil {
		return nil, err
	}
	line = strings.TrimRight(line, "\r\n")
	if line == "" {
		return nil, errors.New("servers: an empty answer")
	}
	kind, rest := line[0], line[1:]
	switch kind {
	case '+':
		return rest, nil
	case '-':
		return nil, redisError(rest)
	}
	n, err := strconv.ParseInt(rest, 10, 64)
	if err != nil {
		return nil, err
	}
	switch {
	case kind == ':':
		return n, nil
	case n < 0:
		return nil, nil
	case kind == '$':
		b := make([]byte, n+2)
		if _, err := io.ReadFull(in, b); err != nil {
			return nil, err
		}
		return string(b[:n]), nil
	case kind == '*':
		all := make([]any, n)
		for i := range all {
			all[i], err = redisAnswer(in)
			if answered, ok := errors.AsType[redisError](err); ok {
				all[i] = string(answered)
			} else if err != nil {
				return nil, err
			}
		}
		return all, nil
	}
	return nil, fmt.Errorf("servers: an answer of kind %q", kind)
}
