package servers

import (
	"errors"
	"fmt"
	"strings"
	"testing"
)

// TestLostHandshakeBeginsAgain stops a node for longer than the node timeout during its
// handshake. The cluster then forgets the node, and meet must begin again.
func TestLostHandshakeBeginsAgain(t *testing.T) {
	if _, err := Find("redis-server"); err != nil {
		t.Skip(err)
	}
	ctx := t.Context()
	c, err := StartRedisCluster(ctx, t.TempDir(), false)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Kill()
	r, err := c.startNode(ctx, t.TempDir(), nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Pause(); err != nil {
		t.Fatal(err)
	}
	met := make(chan error, 1)
	go func() { met <- c.meet(ctx, r) }()
	begun := false
	err = Until(ctx, func() error {
		answer, err := c.Nodes[0].Do(ctx, "CLUSTER", "NODES")
		nodes, shaking := fmt.Sprint(answer), strings.Contains(fmt.Sprint(answer), "handshake")
		begun = begun || shaking
		if err == nil && (!begun || shaking) {
			err = errors.New(nodes)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Cont(); err != nil {
		t.Fatal(err)
	}
	if err := <-met; err != nil {
		t.Error(err)
	}
}
