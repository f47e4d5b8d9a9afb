package redlock

import (
	"strings"
	"testing"

	"github.com/holdfast-go/holdfast/e2e/conformance/requests"
	"github.com/holdfast-go/holdfast/redisstore/redlock"
)

// and adds the check that servers of an old version do not pass to others.
func (f *fleet) and(t *testing.T, checks ...string) []string {
	t.Helper()
	info, err := f.all[0].Info(t.Context(), "server")
	check(t, err)
	if v := info["redis_version"]; strings.HasPrefix(v, "7.0.") || strings.HasPrefix(v, "6.") {
		return append(checks, "version")
	}
	return checks
}

// TestExamineFindsBadFleets: no check but that of the version finds anything at a good fleet, whose servers need not
// keep their data. A server that is down or without a vote is found, and so are settings of one server.
func TestExamineFindsBadFleets(t *testing.T) {
	f := start(t, 3, nil)
	requests.Found(t, f.open(t), f.and(t)...)
	requests.Finds(t, f.open(t, redlock.Fresh()), "fresh", "fresh is true")
	requests.Finds(t, f.open(t, redlock.Unprotected()), "unprotected", "unprotected is true")
	f.do(1, "CONFIG", "SET", "maxmemory", "1")
	requests.Finds(t, f.open(t), "memory", f.proxies[1].Address()+": used_memory is")
	f.do(1, "CONFIG", "SET", "maxmemory", "0")
	f.proxies[2].Refuse()
	requests.Finds(t, f.open(t), "silent-server", f.proxies[2].Address())
	check(t, f.proxies[2].Heal())
	check(t, f.all[2].RestartEmpty(t.Context()))
	s := f.open(t)
	_, err := s.Guarantees(t.Context())
	check(t, err)
	requests.Finds(t, s, "no-vote", f.proxies[2].Address())
	two := start(t, 2, nil)
	requests.Finds(t, two.open(t), "fleet-size", "servers is 2")
}
