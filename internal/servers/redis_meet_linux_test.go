package servers

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/holdfast-go/holdfast/internal/must"
)

// TestLostHandshakeBeginsAgain stops a node for longer than the node timeout during its
// handshake. The cluster then forgets the node, and meet must begin again.
func TestLostHandshakeBeginsAgain(t *testing.T) {
	if _, err := Find("redis-server"); err != nil {
		t.Skip(err)
	}
	ctx := t.Context()
	c, err := StartRedisCluster(ctx, t.TempDir(), false)
	must.Succeed(t, err)
	defer c.Kill()
	r, err := c.startNode(ctx, t.TempDir(), nil)
	must.Succeed(t, err)
	must.Succeed(t, r.Pause())
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
	must.Succeed(t, err)
	must.Succeed(t, r.Cont())
	must.Report(t, <-met)
}
