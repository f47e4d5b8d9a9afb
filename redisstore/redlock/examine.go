package redlock

import (
	"context"
	"slices"
	"strconv"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/examine"
	"github.com/holdfast-go/holdfast/redisstore/internal/server"
)

// fleetChecks are the checks of a fleet, beside those of each of its servers.
var fleetChecks = examine.Table{
	examine.Breaks("fresh", "a URL without fresh=true after the first start", "if all servers lose their data while locks are "+
		"held, the locks are granted again", "remove fresh=true from the URL", examine.Is("fresh", "true")),
	examine.Breaks("unprotected", "a fleet whose restarted servers wait", "a server that lost its data votes again at once, "+
		"also for a lock that is held", "remove the option Unprotected", examine.Is("unprotected", "true")),
	examine.Costs("fleet-size", "3, 5 or 7 servers", "fewer tolerate no failure, and an even number no more than one less",
		"add or remove a server", examine.NoMajority("servers")),
	examine.Costs("silent-server", "servers that all answer", "the fleet tolerates one failure less", "start the server",
		examine.Given("silent")),
	examine.Costs("no-vote", "servers that all have a vote", "the fleet tolerates one failure less",
		"wait, or set the server's clock: the evidence says why", examine.Given("withheld")),
}

// Checks implements driver.Examiner.
func (s *store) Checks() []driver.Check {
	return slices.Concat(fleetChecks.Checks(), server.NodeChecks.Checks())
}

// Examine implements driver.Examiner. A minority of the servers may be silent.
func (s *store) Examine(ctx context.Context) ([]driver.Finding, error) {
	if err := s.calls.Enter(); err != nil {
		return nil, err
	}
	defer s.calls.Leave()
	var fleet, nodes []examine.Facts
	for i, state := range s.states(ctx, s.nodes, false) {
		n := s.nodes[i]
		f := examine.Facts{examine.Where: n.store.String()}
		fleet = append(fleet, f)
		if state.err != nil {
			f["silent"] = state.err.Error()
			continue
		}
		if !state.votes() {
			f["withheld"] = "it has no vote"
			if why := n.whyWithheld(); why != nil {
				f["withheld"] = why.Error()
			}
		}
		of, err := server.Of(n.store).Facts(ctx)
		if err != nil {
			f["silent"] = err.Error()
			continue
		}
		for _, one := range of {
			one[examine.Where] = f[examine.Where]
		}
		nodes = append(nodes, of...)
	}
	whole := examine.Facts{"servers": strconv.Itoa(len(s.nodes)), "fresh": strconv.FormatBool(s.cfg.fresh),
		"unprotected": strconv.FormatBool(s.cfg.unprotected)}
	return slices.Concat(fleetChecks.Find(append(fleet, whole)...), server.NodeChecks.Find(nodes...)), nil
}
