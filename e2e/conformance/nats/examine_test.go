package nats

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/e2e/conformance/requests"
	"github.com/holdfast-go/holdfast/internal/servers"
)

// TestExamineFindsMissingServers: no check finds anything at a good cluster. A replica that does not follow, and a URL
// without all servers, are found.
func TestExamineFindsMissingServers(t *testing.T) {
	c := start(t, servers.NATSConfig{Members: 3})
	s := c.open(t, "")
	requests.Eventually(t, "all replicas are current", func() bool {
		_, found := requests.Finding(t, s, "peers")
		return !found
	})
	requests.Found(t, s)
	requests.Finds(t, c.openOne(t, 0), "servers", "servers in the URL is 1")
	c.members[(c.leader(t)+1)%3].End()
	requests.Eventually(t, "the leader notices", func() bool {
		all, err := s.Examine(t.Context())
		if s.Classify(err) == driver.CodeUnavailable { // the client connects to another server
			return false
		} else if err != nil {
			t.Fatal(err)
		}
		return len(all) > 0
	})
	requests.Finds(t, s, "peers", "not current")
}

// TestExamineFindsSmallBucket: a bucket with one replica stops with its server, and a full one refuses locks.
func TestExamineFindsSmallBucket(t *testing.T) {
	c := start(t, servers.NATSConfig{})
	s := c.open(t, "")
	requests.Found(t, s, "replicas")
	answer, err := c.members[0].Request(t.Context(), "$JS.API.STREAM.INFO.KV_locks", "")
	check(t, err)
	var info struct{ Config map[string]any }
	check(t, json.Unmarshal([]byte(answer), &info))
	info.Config["max_bytes"] = 10_000
	config, _ := json.Marshal(info.Config)
	if answer, err = c.members[0].Request(t.Context(), "$JS.API.STREAM.UPDATE.KV_locks", string(config)); err != nil || strings.Contains(answer, `"error"`) {
		t.Fatal(answer, err)
	}
	_, err = s.Put(t.Context(), "large", []byte(strings.Repeat("x", 8000)), "")
	check(t, err)
	requests.Finds(t, s, "space", "of 10000")
}
