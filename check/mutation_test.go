//go:build linux || darwin

package check_test

import (
	"bytes"
	"context"
	"encoding/json"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/check"
	plant "github.com/holdfast-go/holdfast/internal/mutation"
)

// mutation is a mistake of real lock libraries, which a test plants in this library's
// source. The check must find the mistake.
type mutation struct {
	name   string
	local  string
	plants plant.Plants
	// rules are the rules of which at least one must convict the mistake.
	rules []check.Rule
	// faults are the faults that show the mistake soon. Nil selects all faults.
	faults []string
	// ttl is the TTL of most leases. A shorter TTL brings more faults into a round.
	ttl time.Duration
	// long is the percentage of locks held beyond the TTL. It is set if such locks show the
	// mistake.
	long int
}

var (
	is, and, with = plant.Is, plant.And, plant.With

	exclusion = []check.Rule{check.RuleExclusion}
	validity  = []check.Rule{check.RuleValidity, check.RuleExclusion}
	waiting   = []check.Rule{check.RuleWaiting}
	order     = []check.Rule{check.RuleOrder}
	leftovers = []check.Rule{check.RuleLeftovers}
	forever   = []check.Rule{check.RuleWaiting, check.RuleLeftovers}
)

var mutations = []mutation{
	{"core: validity from the receipt", "memory", plant.Plants{
		"acquired": and("x.standing.grant.SentAt = driver.Now()"),
		"served":   and("x.standing.grant.SentAt = driver.Now()"),
		"renewed":  and("g.SentAt = driver.Now()"),
	}, validity, []string{"delay", "cut"}, 0, 20},
	{"core: the context never ends", "memory", plant.Plants{"expired": is("return effects{}")}, validity, []string{"cut", "stop"}, 240 * time.Millisecond, 0},
	{"core: undo nothing", "memory", plant.Plants{"undo": is("err := error(nil)")}, leftovers, nil, 0, 0},
	{"core: Close does not release held locks", "memory", plant.Plants{"closed": with("| releaseLater", "")}, leftovers, []string{"close"}, 0, 0},
	{"core: Unlock sends nothing to the store", "memory", plant.Plants{"release": is("err = l.withTimeout(&x.releasing, o.holder.ctx, true, timeout).Err()")}, forever, nil, 0, 0},
	{"core: a goroutine stays behind", "memory", plant.Plants{"locker": is("go func() { <-make(chan int) }(); return l")}, leftovers, nil, 0, 0},
	{"core: validity beyond the lease", "memory", plant.Plants{"validity": and("s.valid *= 2")}, validity, nil, 0, 0},

	{"memory: release by name, for any client", "memory", plant.Plants{"memory-owner": is("if e != nil {")}, []check.Rule{check.RuleExclusion, check.RuleLeftovers}, nil, 0, 0},
	{"memory: a lease runs out early", "memory", plant.Plants{"memory-expiry": with("e.ttl)", "e.ttl / 3)")}, exclusion, nil, 0, 0},
	{"memory: expiry ignored", "memory", plant.Plants{"memory-expiry": with("e.ttl)", "e.ttl + time.Hour)")}, forever, []string{"vanish"}, 0, 0},
	{"memory: wake no waiter", "memory", plant.Plants{"memory-wake": is("")}, waiting, nil, 0, 0},
	{"memory: the queue is lost", "memory", plant.Plants{"memory-queue": is("if n.admits(e.limit) {")}, order, nil, 0, 0},
	{"memory: two shared and one exclusive", "memory", plant.Plants{"memory-rule": with("< least", "< least || limit == driver.Exclusive && len(n.holders) == 2")}, exclusion, nil, 0, 0},
	{"memory: one permit too many", "memory", plant.Plants{"memory-rule": with("< least", "< least || least > 1 && len(n.holders) == least")}, exclusion, nil, 0, 0},
	{"memory: tokens from a coarse clock", "memory", plant.Plants{"memory-token": is("e.token = uint64(time.Now().UnixMilli())")}, []check.Rule{check.RuleTokens}, nil, 0, 0},
	{"memory: undo leaves the grant", "memory", plant.Plants{"memory-undo": with("== r.ID", "== r.ID && e.token == 0")}, leftovers, []string{"drop-answers", "lose-answer", "cut"}, 0, 0},

	{"file: a token repeats after a restart of the counter", "file", plant.Plants{
		"file-boot": func(line string) string {
			return "if len(b.entries) == 0 && b.length == 0 {\nb.last -= min(b.last, 2)\n}\n" + line
		},
	}, []check.Rule{check.RuleTokens, check.RuleRegister}, nil, 0, 0},
	{"file: skip the owner check", "file", plant.Plants{"file-owner": with("e.id == id", "(e.id == id || len(id) > 0)")}, []check.Rule{check.RuleExclusion, check.RuleTokens, check.RuleWaiting, check.RuleOrder}, nil, 0, 0},
	{"file: a dead client counts as alive", "file", plant.Plants{"file-life": is("if fd < 0 {")}, exclusion, nil, 0, 0},
	{"file: dead clients hold forever", "file", plant.Plants{"file-life": is("if fd >= 0 {")}, forever, nil, 0, 0},
	{"file: wake no waiter", "file", plant.Plants{"file-wake": is("")}, waiting, []string{}, 0, 0},
	{"file: the queue is lost", "file", plant.Plants{"file-rule": is("return holders+1 > min(least, limit)")}, order, nil, 0, 0},
	{"file: a reader beside a writer", "file", plant.Plants{"file-rule": with("least, ", "least+limit, ")}, exclusion, nil, 0, 0},
}

// shown reports whether a violation of the rule convicts the mistake. The model counts for
// exclusion and for tokens, because it checks both, and only it may find overlaps of
// microseconds.
func (m *mutation) shown(r check.Rule) bool {
	return slices.Contains(m.rules, r) || r == check.RuleModel &&
		(slices.Contains(m.rules, check.RuleExclusion) || slices.Contains(m.rules, check.RuleTokens))
}

// TestMutationsAreConvicted plants each mistake in a copy of the library's source and
// builds the check on it. It runs the check until a rule convicts the mistake.
func TestMutationsAreConvicted(t *testing.T) {
	if testing.Short() {
		t.Skip("builds and tortures the library many times over")
	}
	marks := marks(t)
	for _, m := range mutations {
		t.Run(m.name, func(t *testing.T) {
			t.Parallel()
			bin := m.build(t, marks)
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute) // seconds are enough on a quiet machine
			defer cancel()
			began := time.Now()
			for seed := uint64(1); ; seed++ {
				r := m.torture(ctx, t, bin, seed)
				i := slices.IndexFunc(r.Violations, func(v check.Violation) bool { return m.shown(v.Rule) })
				if i < 0 && !r.OK() {
					t.Fatalf("convicted, but not of %v:%s", m.rules, check.Explain(r))
				}
				if i < 0 {
					continue
				}
				v := r.Violations[i]
				if len(v.Excerpt) > 14 || len(v.Excerpt) == 0 && !strings.Contains(v.Text, "handoffs") {
					t.Errorf("an excerpt of %d events cannot be read:%s", len(v.Excerpt), check.Explain(r))
				}
				one := &check.Report{Violations: []check.Violation{v}, Start: r.Start}
				t.Logf("convicted after %s, seed %d:%s", time.Since(began).Round(100*time.Millisecond), seed, check.Explain(one))
				return
			}
		})
	}
}

// TestEveryMarkIsPlanted requires that a mistake is planted at every mark in the source.
func TestEveryMarkIsPlanted(t *testing.T) {
	for mark, path := range marks(t) {
		if !slices.ContainsFunc(mutations, func(m mutation) bool { return m.plants[mark] != nil }) {
			t.Errorf("%s: no mistake is planted at the mark %s", path, mark)
		}
	}
}

// TestUnmutatedSourcePasses requires that the same build without a mistake breaks no rule.
func TestUnmutatedSourcePasses(t *testing.T) {
	if testing.Short() {
		t.Skip("builds the library")
	}
	m := mutation{}
	bin := m.build(t, marks(t))
	t.Parallel() // a compiler that runs at the same time would disturb the check
	for _, local := range []string{"memory", "file"} {
		m.local = local
		if r := m.torture(t.Context(), t, bin, 1); !r.OK() {
			t.Errorf("%s: convicted a correct build:%s", local, check.Explain(r))
		}
	}
}

func (m *mutation) build(t *testing.T, marks map[string]string) string {
	t.Helper()
	bin, err := plant.Build(t.TempDir(), "./testdata/torture", marks, m.plants)
	if err != nil {
		t.Fatal(err)
	}
	return bin
}

// marks returns the marks of the core and of the stores in this process.
func marks(t *testing.T) map[string]string {
	t.Helper()
	found, err := plant.Marks("memstore", "filestore")
	if err != nil {
		t.Fatal(err)
	}
	return found
}

func (m *mutation) torture(ctx context.Context, t *testing.T, bin string, seed uint64) *check.Report {
	t.Helper()
	config, err := json.Marshal(check.Config{Local: m.local, Seed: seed, Duration: 4 * time.Second, Faults: m.faults, TTL: m.ttl, Long: m.long, Dir: filepath.Join(t.TempDir(), "run")})
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(ctx, bin, string(config))
	var said bytes.Buffer
	cmd.Stderr = &said
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("no verdict after a minute: %v (%v)\n%s", err, ctx.Err(), said.String())
	}
	r := &check.Report{}
	if err := json.Unmarshal(out, r); err != nil {
		t.Fatal(err)
	}
	return r
}
