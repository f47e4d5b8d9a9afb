//go:build linux || darwin

package servers

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// ErrNoZooKeeper means that ZooKeeper or Java is missing.
var ErrNoZooKeeper = fmt.Errorf("servers: Java or ZooKeeper is %w (Debian: apt-get install default-jdk-headless libzookeeper-java libslf4j-java)", ErrNotInstalled)

// ZooKeeperConfig configures a ZooKeeper server. Zero fields have defaults.
type ZooKeeperConfig struct {
	// Tick is tickTime, default 100 ms. The timeout of a session is two ticks at least and
	// MaxSession, default 3 minutes, at most. SyncTicks is the number of ticks for which a
	// follower may be silent, default 20.
	Tick       time.Duration
	MaxSession time.Duration
	SyncTicks  int
	// Settings are further lines of the configuration file. Java has further arguments of
	// the virtual machine.
	Settings, Java []string
	// Synced makes the server answer a write only when it is on the disk, which is
	// ZooKeeper's default. Otherwise the server answers when the write is in the system's
	// cache. The cache outlives the process, which is enough for tests that kill only
	// servers.
	Synced bool
	// Disks gives each server a Disk, to which it writes like a Synced one.
	Disks bool
	// Secure, unless it is nil, opens a second port for TLS.
	Secure *ZooKeeperTLS

	// classpath lists ZooKeeper's jars. It is the first of these that exists:
	// $HOLDFAST_ZOOKEEPER_CLASSPATH, the jars in a directory of $HOLDFAST_SERVERS with a
	// zookeeper.jar, the jars of Debian's packages.
	classpath string
}

// ZooKeeperTLS are the PEM files of a server with TLS.
type ZooKeeperTLS struct {
	// KeyStore has the server's key and certificates. TrustStore has the certificates of
	// the authorities that sign clients' certificates. Every client must have such a
	// certificate.
	KeyStore, TrustStore string
}

// complete sets the defaults and the classpath. It returns ErrNoZooKeeper if no server can be started.
func (c *ZooKeeperConfig) complete() error {
	c.Tick = cmp.Or(c.Tick, 100*time.Millisecond)
	c.MaxSession = cmp.Or(c.MaxSession, 3*time.Minute)
	c.SyncTicks = cmp.Or(c.SyncTicks, 20)
	if _, err := exec.LookPath("java"); err != nil {
		return ErrNoZooKeeper
	}
	if c.classpath = cmp.Or(os.Getenv("HOLDFAST_ZOOKEEPER_CLASSPATH"), givenZooKeeper()); c.classpath != "" {
		return nil
	}
	jar, log := "/usr/share/java/zookeeper.jar", "/usr/share/java/slf4j-simple.jar"
	for _, file := range []string{jar, log} {
		if _, err := os.Stat(file); err != nil {
			return ErrNoZooKeeper
		}
	}
	c.classpath = jar + ":" + log // the jar's manifest lists the other jars that it needs
	// The manifest does not list the jars for TLS.
	for _, name := range []string{"netty-codec", "netty-resolver", "netty-transport-native-unix-common"} {
		c.classpath += ":/usr/share/java/" + name + ".jar"
	}
	return nil
}

// givenZooKeeper returns the jars of the first directory of HOLDFAST_SERVERS with a zookeeper.jar,
// or "" if there is none.
func givenZooKeeper() string {
	for _, dir := range filepath.SplitList(os.Getenv(Dirs)) {
		zookeeper := filepath.Join(dir, "zookeeper.jar")
		if _, err := os.Stat(zookeeper); err != nil {
			continue
		}
		jars, _ := filepath.Glob(filepath.Join(dir, "*.jar"))
		jars = slices.DeleteFunc(jars, func(jar string) bool { return jar == zookeeper })
		// Debian's zookeeper.jar is last: its manifest lists jars in /usr/share/java, which
		// would precede the jars after it.
		return strings.Join(append(jars, zookeeper), string(os.PathListSeparator))
	}
	return ""
}

// ZooKeeper is a single server or a member of an ensemble.
type ZooKeeper struct {
	*Server
	ID           int
	port, secure int
}

// SecureAddress returns the address for clients with TLS.
func (z *ZooKeeper) SecureAddress() string {
	return net.JoinHostPort("127.0.0.1", strconv.Itoa(z.secure))
}

// Address returns the address for clients.
func (z *ZooKeeper) Address() string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(z.port)) }

// Command sends one of the four-letter commands and returns the server's answer.
func (z *ZooKeeper) Command(ctx context.Context, word string) (string, error) {
	c, err := dial(ctx, z.Address())
	if err != nil {
		return "", err
	}
	defer c.Close()
	if _, err := io.WriteString(c, word); err != nil {
		return "", err
	}
	b, err := io.ReadAll(c)
	return string(b), err
}

// Mode returns the server's role: standalone, leader or follower.
func (z *ZooKeeper) Mode(ctx context.Context) (string, error) {
	answer, err := z.Command(ctx, "srvr")
	if err != nil {
		return "", err
	}
	for line := range strings.Lines(answer) {
		if mode, ok := strings.CutPrefix(line, "Mode: "); ok {
			return strings.TrimSpace(mode), nil
		}
	}
	return "", fmt.Errorf("servers: zookeeper reports no mode: %s", strings.TrimSpace(answer))
}

// StartZooKeeper starts a single server.
func StartZooKeeper(ctx context.Context, dir string, c ZooKeeperConfig) (*ZooKeeper, error) {
	if err := c.complete(); err != nil {
		return nil, err
	}
	return retryStart(ctx, func() (*ZooKeeper, error) {
		port, err := FreePort()
		if err != nil {
			return nil, err
		}
		z := &ZooKeeper{ID: 1, port: port}
		return z, z.start(ctx, dir, c, nil)
	})
}

// joinTime is the least time for which an elected leader waits for followers. With longer SyncTicks it
// waits longer.
const joinTime = 3 * time.Second

// start writes the configuration and starts the server. It does not wait until a member of
// an ensemble serves, because a member serves only with others.
func (z *ZooKeeper) start(ctx context.Context, dir string, c ZooKeeperConfig, members []string) error {
	data := filepath.Join(dir, "data")
	if err := os.MkdirAll(data, 0o700); err != nil {
		return err
	}
	lines := []string{
		"dataDir=" + data, "clientPort=" + strconv.Itoa(z.port), "clientPortAddress=127.0.0.1",
		fmt.Sprintf("tickTime=%d", c.Tick.Milliseconds()), fmt.Sprintf("maxSessionTimeout=%d", c.MaxSession.Milliseconds()),
		"initLimit=" + strconv.Itoa(max(c.SyncTicks, int(joinTime/c.Tick))), "syncLimit=" + strconv.Itoa(c.SyncTicks),
		"maxClientCnxns=0", "4lw.commands.whitelist=*", "admin.enableServer=false", "reconfigEnabled=false",
	}
	if c.Secure != nil {
		var err error
		if z.secure, err = FreePort(); err != nil {
			return err
		}
		lines = append(lines, "secureClientPort="+strconv.Itoa(z.secure), "secureClientPortAddress=127.0.0.1",
			"serverCnxnFactory=org.apache.zookeeper.server.NettyServerCnxnFactory",
			"ssl.keyStore.type=PEM", "ssl.keyStore.location="+c.Secure.KeyStore,
			"ssl.trustStore.type=PEM", "ssl.trustStore.location="+c.Secure.TrustStore)
	}
	lines = append(append(lines, members...), c.Settings...)
	// The configuration is outside the data, so that Restore keeps it.
	cfg := filepath.Join(dir, "zoo.cfg")
	if err := os.WriteFile(cfg, []byte(strings.Join(lines, "\n")+"\n"), 0o600); err != nil {
		return err
	}
	if members != nil {
		if err := os.WriteFile(filepath.Join(data, "myid"), []byte(strconv.Itoa(z.ID)), 0o600); err != nil {
			return err
		}
	}
	command := append([]string{"java", "-cp", c.classpath, "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData",
		"-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", "-Dzookeeper.preAllocSize=64", "-Dzookeeper.electionPortBindRetry=0",
		"-Dzookeeper.cnxTimeout=1000", "-Dzookeeper.fastleader.minNotificationInterval=100", "-Dzookeeper.fastleader.maxNotificationInterval=400", adminArgument()}, c.Java...)
	if !c.Synced && !c.Disks {
		command = append(command, "-Dzookeeper.forceSync=no")
	}
	command = append(command, "org.apache.zookeeper.server.quorum.QuorumPeerMain", cfg)
	ready := func(ctx context.Context) error { _, err := z.Mode(ctx); return err }
	if members != nil {
		ready = Dial(z.Address())
	}
	s, err := Start(ctx, Config{Name: fmt.Sprintf("zookeeper %d", z.ID), Command: command, Dir: dir, Ready: ready, Timeout: time.Minute, Disk: c.Disks})
	z.Server = s
	return err
}

// restartTimeout limits one start of a server with data. A server whose sessions expire at
// its start sometimes stops serving and keeps running.
const restartTimeout = 20 * time.Second

// Restart restarts the server up to three times, until it serves.
func (z *ZooKeeper) Restart(ctx context.Context) (err error) {
	for range 3 {
		try, cancel := context.WithTimeout(ctx, restartTimeout)
		err = z.Server.Restart(try)
		cancel()
		if err == nil || ctx.Err() != nil {
			break
		}
	}
	return err
}

// StartMember starts a member of an ensemble whose lines list all its servers, this one as server.ID with a port for
// clients. It returns when the member accepts connections, which does not wait for the others.
func StartMember(ctx context.Context, dir string, c ZooKeeperConfig, id, port int, lines []string) (*ZooKeeper, error) {
	if err := c.complete(); err != nil {
		return nil, err
	}
	z := &ZooKeeper{ID: id, port: port}
	return z, z.start(ctx, dir, c, lines)
}

// Ensemble is three servers. A follower reaches the leader through its own proxy.
type Ensemble struct {
	Members []*ZooKeeper

	mu sync.Mutex
	// links[i][j] is the proxy from member i to j's port for followers, nil if i is j.
	links [][]*Proxy
}

const ensembleSize = 3

// StartEnsemble starts three servers and waits until they have a leader.
func StartEnsemble(ctx context.Context, dir string, c ZooKeeperConfig) (*Ensemble, error) {
	if err := c.complete(); err != nil {
		return nil, err
	}
	return retryIn(ctx, dir, func(dir string) (*Ensemble, error) { return startEnsemble(ctx, dir, c) })
}

func startEnsemble(ctx context.Context, dir string, c ZooKeeperConfig) (_ *Ensemble, err error) {
	e := &Ensemble{}
	defer func() {
		if err != nil {
			e.Close()
		}
	}()
	ports, err := freePorts(3 * ensembleSize)
	if err != nil {
		return nil, err
	}
	clients, quorums, elections := ports[:ensembleSize], ports[ensembleSize:2*ensembleSize], ports[2*ensembleSize:]
	for i := range ensembleSize {
		var links []*Proxy
		var lines []string
		for j, quorum := range quorums {
			links = append(links, nil)
			if i != j {
				p, err := NewProxy(net.JoinHostPort("127.0.0.1", strconv.Itoa(quorum)))
				if err != nil {
					return nil, err
				}
				links[j] = p
				_, port, _ := net.SplitHostPort(p.Address())
				quorum, _ = strconv.Atoi(port)
			}
			lines = append(lines, fmt.Sprintf("server.%d=127.0.0.1:%d:%d", j+1, quorum, elections[j]))
		}
		e.links = append(e.links, links)
		z := &ZooKeeper{ID: i + 1, port: clients[i]}
		if err := z.start(ctx, filepath.Join(dir, strconv.Itoa(i+1)), c, lines); err != nil {
			return nil, err
		}
		e.Members = append(e.Members, z)
	}
	_, err = e.Leader(ctx)
	return e, err
}

// Addresses returns the addresses for clients, separated by commas.
func (e *Ensemble) Addresses() string {
	var all []string
	for _, m := range e.Members {
		all = append(all, m.Address())
	}
	return strings.Join(all, ",")
}

// Leader waits until every running member has joined a leader, and returns the leader.
func (e *Ensemble) Leader(ctx context.Context) (*ZooKeeper, error) {
	var leader *ZooKeeper
	err := Within(ctx, 2*time.Minute, func() error {
		leader = nil
		joined, running := 0, 0
		for _, m := range e.Members {
			if m.PID() == 0 {
				continue
			}
			running++
			try, cancel := context.WithTimeout(ctx, time.Second)
			mode, err := m.Mode(try)
			cancel()
			if err != nil {
				continue
			}
			joined++
			if mode == "leader" {
				leader = m
			}
		}
		if leader == nil || joined < running {
			return errors.New("servers: the ensemble has no leader")
		}
		return nil
	})
	return leader, err
}

// Follower waits until there is a leader, and returns a running member that follows it.
func (e *Ensemble) Follower(ctx context.Context) (*ZooKeeper, error) {
	leader, err := e.Leader(ctx)
	if err != nil {
		return nil, err
	}
	for _, m := range e.Members {
		if m != leader && m.PID() != 0 {
			return m, nil
		}
	}
	return nil, errors.New("servers: the leader has no follower")
}

// Silence drops what a follower and its leader send to each other, until Heal. It leaves the
// connection open. Clients still reach both servers.
func (e *Ensemble) Silence(m *ZooKeeper) error { return e.each(m, (*Proxy).Silence) }

// Heal ends the effect of Silence.
func (e *Ensemble) Heal(m *ZooKeeper) error { return e.each(m, (*Proxy).Heal) }

// each calls do with each proxy from m to another member.
func (e *Ensemble) each(m *ZooKeeper, do func(*Proxy) error) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	var errs []error
	for _, p := range e.links[m.ID-1] {
		if p != nil {
			errs = append(errs, do(p))
		}
	}
	return errors.Join(errs...)
}

// Close ends the members and the links.
func (e *Ensemble) Close() {
	for _, m := range e.Members {
		m.End()
	}
	for _, links := range e.links {
		for _, p := range links {
			if p != nil {
				p.Close()
			}
		}
	}
}
