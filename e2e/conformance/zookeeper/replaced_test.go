package zookeeper

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	zookeeper "github.com/go-zookeeper/zk"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/e2e/conformance/requests"
	"github.com/holdfast-go/holdfast/e2e/servertest"
	"github.com/holdfast-go/holdfast/internal/servers"
)

// TestLockOutlivesEveryServer: the three servers of an ensemble are replaced one after another by reconfig. A lock stays,
// and a client that was open before gets one. A new client with the old addresses reports that no server is there.
func TestLockOutlivesEveryServer(t *testing.T) {
	const size = 3
	c := servers.ZooKeeperConfig{Tick: tick, Settings: []string{"reconfigEnabled=true", "standaloneEnabled=false", "skipACL=yes"}}
	var lines, addresses []string // of the servers so far
	var ports []int
	for id := 1; id <= 2*size; id++ {
		var port [3]int
		for i := range port {
			var err error
			port[i], err = servers.FreePort()
			must(t, err)
		}
		lines = append(lines, fmt.Sprintf("server.%d=127.0.0.1:%d:%d:participant;127.0.0.1:%d", id, port[1], port[2], port[0]))
		ports = append(ports, port[0])
		addresses = append(addresses, "127.0.0.1:"+strconv.Itoa(port[0]))
	}
	dir := t.TempDir()
	start := func(id int, present []string) *servers.ZooKeeper {
		z, err := servers.StartMember(t.Context(), filepath.Join(dir, strconv.Itoa(id)), c, id, ports[id-1], present)
		servertest.Started(t, err)
		t.Cleanup(z.Kill)
		return z
	}
	var members []*servers.ZooKeeper
	for id := 1; id <= size; id++ {
		members = append(members, start(id, lines[:size]))
	}
	admin, _, err := zookeeper.Connect(addresses, 20*time.Second, zookeeper.WithLogger(quiet{}))
	must(t, err)
	defer admin.Close()

	holder, _ := locker(t, addresses[:size])
	other, _ := locker(t, addresses[:size])
	k, err := requests.Retried(func() (*holdfast.Lock, error) { return holder.Lock(t.Context(), "held", holdfast.TTL(10*time.Second)) })
	must(t, err)
	work := func() error { return other.Do(t.Context(), "free", func(context.Context) error { return nil }) }
	must(t, work())
	for i := range size {
		start(size+1+i, lines[i:size+1+i])
		reconfigured := func(what string, added, removed []string) {
			requests.Eventually(t, what, func() bool { // an election interrupts a change
				_, err := admin.IncrementalReconfig(added, removed, -1)
				return err == nil
			})
		}
		reconfigured("a server is added", lines[size+i:size+1+i], nil)
		reconfigured("a server is removed", nil, []string{strconv.Itoa(i + 1)})
		members[i].Kill()
	}
	must(t, work())
	if err := k.Context().Err(); err != nil {
		t.Fatalf("the lock was lost with the servers: %v", context.Cause(k.Context()))
	}
	if _, err := other.TryLock(t.Context(), "held"); !errors.Is(err, holdfast.ErrBusy) {
		t.Errorf("another client gets %v, want busy", err)
	}
	must(t, k.Unlock())
	late, _ := locker(t, addresses[:size])
	if _, err := late.TryLock(t.Context(), "free"); !errors.Is(err, holdfast.ErrUnavailable) {
		t.Errorf("a new client with the addresses of the removed servers: %v, want unavailable", err)
	}
}
