package etcd

import (
	"fmt"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/holdfast-go/holdfast/internal/servers"
)

// TestGrowthWithoutCompaction checks the numbers of docs/etcd.md. A lock and its release make two
// revisions. Until compaction they add about 300 bytes, and two to three more for each byte of the
// name. Compaction frees the space inside the file, and defragmentation makes the file smaller.
func TestGrowthWithoutCompaction(t *testing.T) {
	c := start(t, servers.EtcdConfig{})
	s, client := c.open(t), c.direct(t)
	const pairs = 1000
	status := func() *clientv3.StatusResponse {
		t.Helper()
		st, err := client.Status(t.Context(), c.members[0].Client)
		check(t, err)
		return st
	}
	defragment := func() *clientv3.StatusResponse {
		t.Helper()
		// The server first writes its pending changes.
		_, err := client.Defragment(t.Context(), c.members[0].Client)
		check(t, err)
		return status()
	}
	must(t, s, request("warm", 1, time.Hour))
	c.watched(t, 1) // of the sentinel of the lease: no write follows
	before := defragment()
	first := before
	grown := map[int]int64{}
	for _, length := range []int{16, 216} {
		for i := range pairs {
			name := fmt.Sprintf("%d-%s", i, strings.Repeat("n", length))[:length]
			check(t, s.Release(t.Context(), must(t, s, request(name, 1, time.Hour)), 0))
		}
		after := defragment()
		if made := after.Header.Revision - before.Header.Revision; made != 2*pairs {
			t.Errorf("%d pairs made %d revisions, want 2 each", pairs, made)
		}
		grown[length] = (after.DbSizeInUse - before.DbSizeInUse) / pairs
		t.Logf("a pair with a name of %d bytes adds %d bytes", length, grown[length])
		before = after
	}
	perByte := float64(grown[216]-grown[16]) / 200
	if perByte < 2 || perByte > 3 {
		t.Errorf("a byte of the name adds %.2f bytes, want 2 to 3", perByte)
	}
	if rest := float64(grown[16]) - 16*perByte; rest < 200 || rest > 350 {
		t.Errorf("a pair adds %.0f bytes beside the name, want about 300", rest)
	}

	_, err := client.Compact(t.Context(), before.Header.Revision, clientv3.WithCompactPhysical())
	check(t, err)
	eventually(t, "the server frees the space, a while later", func() bool {
		return status().DbSizeInUse < before.DbSizeInUse/4
	})
	if st := status(); st.DbSize < before.DbSize {
		t.Errorf("the file shrank from %d to %d bytes without defragmentation", before.DbSize, st.DbSize)
	}
	if after := defragment(); after.DbSize > 2*first.DbSize {
		t.Errorf("the file has %d bytes after compaction and defragmentation, and had %d at first", after.DbSize, first.DbSize)
	}
}
