//go:build linux || darwin

package servers

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// RedisCluster is a Redis Cluster of three primaries, with or without a replica for each.
type RedisCluster struct {
	Nodes []*Redis
	ids   map[*Redis]string // the node IDs
	buses map[*Redis]int    // the ports of the cluster bus
}

const (
	slots     = 16384 // the number of slots of a cluster
	primaries = 3     // the first Nodes are the primaries of the start
)

// RedisNodeTimeout is the silence after which the nodes of a cluster consider a node dead,
// unless SetNodeTimeout changes it.
const RedisNodeTimeout = time.Second

// StartRedisCluster starts three primaries and, if replicas is set, a replica for each. It waits
// until they serve as one cluster.
func StartRedisCluster(ctx context.Context, dir string, replicas bool, settings ...string) (_ *RedisCluster, err error) {
	c := &RedisCluster{ids: map[*Redis]string{}, buses: map[*Redis]int{}}
	defer func() {
		if err != nil {
			c.Kill()
		}
	}()
	n := primaries
	if replicas {
		n *= 2
	}
	for i := range n {
		r, err := c.startNode(ctx, dir, settings)
		if err != nil {
			return nil, err
		}
		if _, err := r.Do(ctx, "CLUSTER", "SET-CONFIG-EPOCH", strconv.Itoa(i+1)); err != nil {
			return nil, err
		}
	}
	for i, r := range c.Nodes[:primaries] {
		from, to := i*slots/primaries, (i+1)*slots/primaries-1
		if _, err := r.Do(ctx, "CLUSTER", "ADDSLOTSRANGE", strconv.Itoa(from), strconv.Itoa(to)); err != nil {
			return nil, err
		}
	}
	if err := c.meet(ctx, c.Nodes[1:]...); err != nil {
		return nil, err
	}
	if err := c.replicate(ctx); err != nil {
		return nil, err
	}
	return c, c.Whole(ctx)
}

// replicate makes each node after the primaries a replica of one primary, and waits until the two
// have a link.
func (c *RedisCluster) replicate(ctx context.Context) error {
	for i, r := range c.Nodes[primaries:] {
		// A node can become a replica only after gossip has brought it the primary's ID.
		err := Until(ctx, func() error {
			_, err := r.Do(ctx, "CLUSTER", "REPLICATE", c.ids[c.Nodes[i]])
			return err
		})
		if err != nil {
			return err
		}
	}
	for i, r := range c.Nodes[primaries:] {
		if err := Until(ctx, func() error { return c.linked(ctx, r, c.Nodes[i]) }); err != nil {
			return err
		}
	}
	return nil
}

// linked returns nil if a replica has a link to its primary, and the primary lists the replica.
func (c *RedisCluster) linked(ctx context.Context, replica, primary *Redis) error {
	if err := replica.Follows(ctx); err != nil {
		return err
	}
	answer, err := primary.Do(ctx, "CLUSTER", "REPLICAS", c.ids[primary])
	if all, _ := answer.([]any); err == nil && len(all) == 0 {
		err = errors.New("the primary does not list its replica yet")
	}
	return err
}

// startNode starts a node that belongs to no cluster yet.
func (c *RedisCluster) startNode(ctx context.Context, dir string, settings []string) (*Redis, error) {
	var port int
	r, err := startRedis(ctx, filepath.Join(dir, "node"+strconv.Itoa(len(c.Nodes))), func() (_ []string, err error) {
		port, err = FreePort()
		return append([]string{
			"--cluster-enabled", "yes", "--cluster-port", strconv.Itoa(port), "--cluster-node-timeout", strconv.FormatInt(RedisNodeTimeout.Milliseconds(), 10),
			"--cluster-config-file", "nodes.conf", "--cluster-require-full-coverage", "no", "--cluster-replica-validity-factor", "0",
		}, settings...), err
	})
	if err != nil {
		return nil, err
	}
	c.Nodes = append(c.Nodes, r)
	c.buses[r] = port
	id, err := r.Do(ctx, "CLUSTER", "MYID")
	c.ids[r], _ = id.(string)
	return r, err
}

// meet adds nodes to the cluster of the first node, and waits until all are linked. A server ends
// the handshake with a node that does not answer within the node timeout. Then meet begins again.
func (c *RedisCluster) meet(ctx context.Context, nodes ...*Redis) error {
	return Until(ctx, func() error {
		for _, r := range nodes {
			if _, err := c.Nodes[0].Do(ctx, "CLUSTER", "MEET", "127.0.0.1", strconv.Itoa(r.Port), strconv.Itoa(c.buses[r])); err != nil {
				return err
			}
		}
		return Within(ctx, 5*time.Second, c.whole(ctx))
	})
}

// Join starts a primary without slots, with its data in a directory under dir. It waits until all
// nodes have a link to it. BeginMove and EndMove move slots to it.
func (c *RedisCluster) Join(ctx context.Context, dir string, settings ...string) (*Redis, error) {
	r, err := c.startNode(ctx, dir, settings)
	if err == nil {
		err = c.meet(ctx, r)
	}
	return r, err
}

// Whole waits until every running node lists all nodes and reports that all slots are served.
func (c *RedisCluster) Whole(ctx context.Context) error { return Until(ctx, c.whole(ctx)) }

// whole returns a function that checks the condition of Whole once.
func (c *RedisCluster) whole(ctx context.Context) func() error {
	return func() error {
		for _, r := range RunningRedis(c.Nodes) {
			answer, err := r.Do(ctx, "CLUSTER", "INFO")
			if err != nil {
				return err
			}
			text, _ := answer.(string)
			for _, want := range []string{"cluster_state:ok", "cluster_slots_ok:" + strconv.Itoa(slots), "cluster_known_nodes:" + strconv.Itoa(len(c.Nodes))} {
				if !strings.Contains(text, want) {
					return fmt.Errorf("the node on port %d does not report %s", r.Port, want)
				}
			}
		}
		return nil
	}
}

// SetNodeTimeout sets the silence after which the running nodes consider a node dead.
func (c *RedisCluster) SetNodeTimeout(ctx context.Context, d time.Duration) error {
	return DoEach(ctx, RunningRedis(c.Nodes), "CONFIG", "SET", "cluster-node-timeout", strconv.FormatInt(d.Milliseconds(), 10))
}

// Slot returns the slot of a key.
func (c *RedisCluster) Slot(ctx context.Context, key string) (int, error) {
	answer, err := c.Nodes[0].Do(ctx, "CLUSTER", "KEYSLOT", key)
	n, _ := answer.(int64)
	return int(n), err
}

// Owner returns the running primary of a slot, as a running node reports it.
func (c *RedisCluster) Owner(ctx context.Context, slot int) (*Redis, error) {
	var last error
	for _, node := range RunningRedis(c.Nodes) {
		answer, err := node.Do(ctx, "CLUSTER", "SLOTS")
		if err != nil {
			last = err
			continue
		}
		port := primaryOf(answer, int64(slot))
		for _, r := range RunningRedis(c.Nodes) {
			if int64(r.Port) == port {
				return r, nil
			}
		}
	}
	return nil, errors.Join(fmt.Errorf("servers: no node serves slot %d", slot), last)
}

// primaryOf returns the port of a slot's primary from the answer of CLUSTER SLOTS, and 0 if no range
// has the slot. A range is a list: the first slot, the last slot, the primary, the replicas.
func primaryOf(answer any, slot int64) (port int64) {
	ranges, _ := answer.([]any)
	for _, x := range ranges {
		part, _ := x.([]any)
		if len(part) < 3 {
			continue
		}
		from, _ := part[0].(int64)
		to, _ := part[1].(int64)
		primary, _ := part[2].([]any) // its address, its port, its ID
		if from <= slot && slot <= to && len(primary) >= 2 {
			port, _ = primary[1].(int64)
			return port
		}
	}
	return 0
}

// BeginMove begins to move a slot. The keys of the slot stay at from.
func (c *RedisCluster) BeginMove(ctx context.Context, slot int, from, to *Redis) error {
	if _, err := to.Do(ctx, "CLUSTER", "SETSLOT", strconv.Itoa(slot), "IMPORTING", c.ids[from]); err != nil {
		return err
	}
	_, err := from.Do(ctx, "CLUSTER", "SETSLOT", strconv.Itoa(slot), "MIGRATING", c.ids[to])
	return err
}

// MoveKey moves one key of a slot that is being moved.
func (c *RedisCluster) MoveKey(ctx context.Context, key string, from, to *Redis) error {
	_, err := from.Do(ctx, "MIGRATE", "127.0.0.1", strconv.Itoa(to.Port), key, "0", "5000")
	return err
}

// EndMove moves the remaining keys of the slot, and sets its new owner on every node.
func (c *RedisCluster) EndMove(ctx context.Context, slot int, from, to *Redis) error {
	for {
		answer, err := from.Do(ctx, "CLUSTER", "GETKEYSINSLOT", strconv.Itoa(slot), "100")
		if err != nil {
			return err
		}
		keys, _ := answer.([]any)
		if len(keys) == 0 {
			break
		}
		for _, k := range keys {
			if err := c.MoveKey(ctx, k.(string), from, to); err != nil {
				return err
			}
		}
	}
	for _, r := range RunningRedis(append([]*Redis{to, from}, c.Nodes...)) {
		// A replica receives the change from its primary, so its refusal is not a failure.
		if _, err := r.Do(ctx, "CLUSTER", "SETSLOT", strconv.Itoa(slot), "NODE", c.ids[to]); err != nil && !strings.Contains(err.Error(), "SETSLOT only with masters") {
			return err
		}
	}
	return nil
}

// Kill kills all nodes.
func (c *RedisCluster) Kill() {
	for _, r := range c.Nodes {
		r.Kill()
	}
}
