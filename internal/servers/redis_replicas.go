//go:build linux || darwin

package servers

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/holdfast-go/holdfast/internal/backoff"
)

// RedisReplicas is a primary and its replicas.
type RedisReplicas struct {
	Primary  *Redis
	Replicas []*Redis
}

// StartRedisReplicas starts a primary and n replicas, and waits until they follow it: see Linked.
func StartRedisReplicas(ctx context.Context, dir string, n int, settings ...string) (_ *RedisReplicas, err error) {
	g := &RedisReplicas{}
	defer func() {
		if err != nil {
			g.Kill()
		}
	}()
	if g.Primary, err = StartRedis(ctx, filepath.Join(dir, "node0"), settings...); err != nil {
		return nil, err
	}
	for i := range n {
		r, err := StartRedis(ctx, filepath.Join(dir, "node"+strconv.Itoa(i+1)), append(slices.Clone(settings), "--replicaof", "127.0.0.1 "+strconv.Itoa(g.Primary.Port))...)
		if err != nil {
			return nil, err
		}
		g.Replicas = append(g.Replicas, r)
	}
	return g, g.Linked(ctx)
}

// Linked waits until every running replica has a link to the primary and has acknowledged data
// over it.
func (g *RedisReplicas) Linked(ctx context.Context) error {
	return Until(ctx, func() error {
		// The replicas acknowledge this command, and it leaves no data.
		if _, err := g.Primary.Do(ctx, "PUBLISH", "linked", "?"); err != nil {
			return err
		}
		primary, err := g.Primary.Info(ctx, "replication")
		if err != nil {
			return err
		}
		for _, r := range RunningRedis(g.Replicas) {
			if err := r.Follows(ctx); err != nil {
				return err
			}
			if !acknowledges(primary, r.Port) {
				return fmt.Errorf("the replica on port %d has acknowledged nothing to its primary", r.Port)
			}
		}
		return nil
	})
}

// Follows returns nil if the server is a replica with a link to its primary.
func (r *Redis) Follows(ctx context.Context) error {
	info, err := r.Info(ctx, "replication")
	if err == nil && (info["role"] != "slave" || info["master_link_status"] != "up") {
		err = fmt.Errorf("the server on port %d does not follow a primary yet", r.Port)
	}
	return err
}

// acknowledges reports whether the replica on a port has sent its offset to the primary, whose
// section "replication" of INFO is given. Before that, WAIT does not count the replica. The offset
// may arrive a second after the link is up.
func acknowledges(primary map[string]string, port int) bool {
	for name, text := range primary {
		if !strings.HasPrefix(name, "slave") {
			continue
		}
		fields := strings.Split(text, ",")
		if slices.Contains(fields, "port="+strconv.Itoa(port)) {
			return slices.Contains(fields, "state=online") && !slices.Contains(fields, "offset=0")
		}
	}
	return false
}

// All returns the servers, the primary first.
func (g *RedisReplicas) All() []*Redis {
	var all []*Redis
	if g.Primary != nil {
		all = append(all, g.Primary)
	}
	return append(all, g.Replicas...)
}

// Kill kills all servers.
func (g *RedisReplicas) Kill() {
	for _, r := range g.All() {
		r.Kill()
	}
}

// RunningRedis returns the servers that run.
func RunningRedis(all []*Redis) []*Redis {
	return slices.DeleteFunc(slices.Clone(all), func(r *Redis) bool { return r.PID() == 0 })
}

// DoEach sends a command to servers, one after another.
func DoEach(ctx context.Context, all []*Redis, args ...string) error {
	for _, r := range all {
		if _, err := r.Do(ctx, args...); err != nil {
			return fmt.Errorf("%s: %w", strings.Join(args, " "), err)
		}
	}
	return nil
}

// Info returns a section of INFO.
func (r *Redis) Info(ctx context.Context, section string) (map[string]string, error) {
	answer, err := r.Do(ctx, "INFO", section)
	if err != nil {
		return nil, err
	}
	text, _ := answer.(string)
	info := map[string]string{}
	for line := range strings.Lines(text) {
		if k, v, ok := strings.Cut(strings.TrimSpace(line), ":"); ok {
			info[k] = v
		}
	}
	return info, nil
}

// Until repeats f until f returns nil, for at most 30 seconds.
func Until(ctx context.Context, f func() error) error { return Within(ctx, 30*time.Second, f) }

// Within repeats f until f returns nil, for at most d. Its error wraps that of the last call.
func Within(ctx context.Context, d time.Duration, f func() error) error {
	ctx, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	for {
		err := f()
		if err == nil {
			return nil
		}
		if end := backoff.Sleep(ctx, 20*time.Millisecond); end != nil {
			return fmt.Errorf("%w: %w", end, err)
		}
	}
}

// RedisSentinel is a primary and replicas with sentinels.
type RedisSentinel struct {
	*RedisReplicas
	Sentinels []*Redis
	// Name is the name that the sentinels use for the primary.
	Name string
}

// The silence after which sentinels consider a server dead. Only FailedOver sets the short one, so that they never
// replace a server that is merely slow.
const (
	sentinelNotDown   = time.Hour
	sentinelDownAfter = 500 * time.Millisecond
)

// StartRedisSentinel starts a primary, n replicas and three sentinels, which replace the primary only
// in Failover and FailedOver. The settings apply to the primary and the replicas. The sentinels use only
// the TLS settings and, to connect to these servers, the password.
func StartRedisSentinel(ctx context.Context, dir string, n int, settings ...string) (*RedisSentinel, error) {
	return StartRedisSentinelWith(ctx, dir, n, "", settings...)
}

// StartRedisSentinelWith is StartRedisSentinel with a password for the sentinels.
func StartRedisSentinelWith(ctx context.Context, dir string, n int, password string, settings ...string) (_ *RedisSentinel, err error) {
	program, err := RedisInstalled()
	if err != nil {
		return nil, err
	}
	s := &RedisSentinel{Name: "mymaster"}
	defer func() {
		if err != nil {
			s.Kill()
		}
	}()
	if s.RedisReplicas, err = StartRedisReplicas(ctx, dir, n, settings...); err != nil {
		s.RedisReplicas = &RedisReplicas{}
		return nil, err
	}
	for i := range 3 {
		home := filepath.Join(dir, "sentinel"+strconv.Itoa(i))
		r, err := retryStart(ctx, func() (*Redis, error) { return s.startSentinel(ctx, program, home, password, settings) })
		if err != nil {
			return nil, err
		}
		s.Sentinels = append(s.Sentinels, r)
	}
	// Wait until the sentinels have found one another and the replicas.
	return s, s.awaitReport(ctx, map[string]string{"num-slaves": strconv.Itoa(n), "num-other-sentinels": "2", "flags": "master"})
}

// startSentinel makes one attempt to start a sentinel on a free port. password is the sentinel's own.
// settings are those of the primary and the replicas.
func (s *RedisSentinel) startSentinel(ctx context.Context, program, home, password string, settings []string) (*Redis, error) {
	if err := os.MkdirAll(home, 0o700); err != nil {
		return nil, err
	}
	port, err := FreePort()
	if err != nil {
		return nil, err
	}
	r := &Redis{Port: port}
	if err := r.understand(settings); err != nil {
		return nil, err
	}
	conf := fmt.Sprintf("bind 127.0.0.1\ndir .\nsentinel monitor %[1]s 127.0.0.1 %[2]d 2\nsentinel down-after-milliseconds %[1]s %[3]d\nsentinel failover-timeout %[1]s 3000\n",
		s.Name, s.Primary.Port, sentinelNotDown.Milliseconds())
	if r.Password != "" { // here that of the primary and the replicas
		conf += "sentinel auth-pass " + s.Name + " " + r.Password + "\n"
	}
	if r.Password = password; password != "" {
		conf += "requirepass " + password + "\nsentinel sentinel-pass " + password + "\n"
	}
	own := r.listen()
	for i := 0; i+1 < len(settings); i += 2 {
		if strings.HasPrefix(settings[i], "--tls-") {
			own = append(own, settings[i:i+2]...)
		}
	}
	for i := 0; i+1 < len(own); i += 2 { // "--port", "26379" becomes the line "port 26379"
		conf += own[i][2:] + " " + own[i+1] + "\n"
	}
	if err := os.WriteFile(filepath.Join(home, "sentinel.conf"), []byte(conf), 0o600); err != nil {
		return nil, err
	}
	r.Server, err = Start(ctx, Config{
		Name: "sentinel", Dir: home, Command: []string{program, "sentinel.conf", "--sentinel"},
		Ready: func(ctx context.Context) error { // fails if another process has the port
			_, err := r.Do(ctx, "SENTINEL", "MASTER", s.Name)
			return err
		},
	})
	return r, err
}

// pairs returns the fields of an answer that lists names and values alternately.
func pairs(answer any) map[string]string {
	all, _ := answer.([]any)
	m := map[string]string{}
	for i := 0; i+1 < len(all); i += 2 {
		k, _ := all[i].(string)
		m[k], _ = all[i+1].(string)
	}
	return m
}

// Current returns the server that at least two sentinels report as the primary.
func (s *RedisSentinel) Current(ctx context.Context) (*Redis, error) {
	votes := map[string]int{}
	for _, r := range s.Sentinels {
		answer, err := r.Do(ctx, "SENTINEL", "GET-MASTER-ADDR-BY-NAME", s.Name)
		if err != nil {
			continue
		}
		if at, _ := answer.([]any); len(at) == 2 {
			port, _ := at[1].(string)
			votes[port]++
		}
	}
	for _, r := range s.All() {
		if votes[strconv.Itoa(r.Port)] >= 2 {
			return r, nil
		}
	}
	return nil, errors.New("servers: the sentinels do not agree")
}

// setDownAfter sets the silence after which the sentinels consider a server dead.
func (s *RedisSentinel) setDownAfter(ctx context.Context, d time.Duration) error {
	return DoEach(ctx, s.Sentinels, "SENTINEL", "SET", s.Name, "down-after-milliseconds", strconv.FormatInt(d.Milliseconds(), 10))
}

// awaitReport waits until each sentinel reports these values about the primary.
func (s *RedisSentinel) awaitReport(ctx context.Context, want map[string]string) error {
	return Until(ctx, func() error {
		for _, r := range s.Sentinels {
			answer, err := r.Do(ctx, "SENTINEL", "MASTER", s.Name)
			if err != nil {
				return err
			}
			report := pairs(answer)
			for name, value := range want {
				if report[name] != value {
					return fmt.Errorf("the sentinel on port %d reports %s %q, not %q", r.Port, name, report[name], value)
				}
			}
		}
		return nil
	})
}

// Failover makes the sentinels replace the primary, although it is alive.
func (s *RedisSentinel) Failover(ctx context.Context) error {
	return Until(ctx, func() error { // a replica may not be ready to be promoted yet
		_, err := s.Sentinels[0].Do(ctx, "SENTINEL", "FAILOVER", s.Name)
		return err
	})
}

// FailedOver waits until the sentinels have promoted another server than from, and that
// server has the role of a primary. It returns that server. The wait may take half a minute:
// a sentinel that was itself delayed does nothing for that time (TILT mode).
func (s *RedisSentinel) FailedOver(ctx context.Context, from *Redis) (*Redis, error) {
	if err := s.setDownAfter(ctx, sentinelDownAfter); err != nil {
		return nil, err
	}
	var to *Redis
	err := Within(ctx, time.Minute, func() error {
		r, err := s.Current(ctx)
		if err != nil {
			return err
		}
		if r == from {
			return errors.New("no failover yet")
		}
		info, err := r.Info(ctx, "replication")
		if err == nil && info["role"] != "master" {
			err = errors.New("not promoted yet")
		}
		to = r
		return err
	})
	if err == nil {
		err = s.setDownAfter(ctx, sentinelNotDown)
	}
	if err == nil {
		// No sentinel suspects the primary, or waits for its answer.
		err = s.awaitReport(ctx, map[string]string{"flags": "master", "last-ping-sent": "0"})
	}
	return to, err
}

// Kill kills all servers and sentinels.
func (s *RedisSentinel) Kill() {
	for _, r := range s.Sentinels {
		r.Kill()
	}
	s.RedisReplicas.Kill()
}
