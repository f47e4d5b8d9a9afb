//go:build linux || darwin

package check_test

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/check"
	"github.com/holdfast-go/holdfast/internal/must"
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
	waiting   = []check.Rule{check.RuleWaiting, check.RuleLate}
	order     = []check.Rule{check.RuleOrder}
	leftovers = []check.Rule{check.RuleLeftovers}
	kept      = []check.Rule{check.RuleKept}
	every     = []check.Rule{check.RuleEvery}
	values    = []check.Rule{check.RuleValues, check.RuleIDs, check.RuleOnce}
	late      = []check.Rule{check.RuleLate}
	ids       = []check.Rule{check.RuleIDs}
	forever   = []check.Rule{check.RuleWaiting, check.RuleLeftovers, check.RuleLate}
)

var mutations = []mutation{
	{"core: validity from the receipt", "memory", plant.Plants{
		"granted": and("x.standing.grant.SentAt = driver.Now()"),
		"renewed": and("g.SentAt = driver.Now()"),
	}, validity, []string{"delay", "cut"}, 0, 20},
	{"core: the context never ends", "memory", plant.Plants{"expired": is("return effects{}")}, validity, []string{"cut", "stop"}, 240 * time.Millisecond, 0},
	{"core: undo nothing", "memory", plant.Plants{"undo": is("err := error(nil)")}, leftovers, nil, 0, 0},
	{"core: Close does not release held locks", "memory", plant.Plants{"closed": with("| releaseLater", "")}, leftovers, []string{"close"}, 0, 0},
	{"core: Unlock sends nothing to the store", "memory", plant.Plants{"release": is("err = l.withTimeout(&x.releasing, o.holder.ctx, true, timeout).Err()")}, forever, nil, 0, 0},
	{"core: a goroutine stays behind", "memory", plant.Plants{"locker": is("go func() { <-make(chan int) }(); return l")}, leftovers, nil, 0, 0},
	{"core: validity beyond the lease", "memory", plant.Plants{"validity": and("s.valid *= 2")}, validity, nil, 0, 0},
	{"core: a MinHold ends at the unlock", "memory", plant.Plants{"rest": is("return 0")}, kept, nil, 0, 0},
	{"core: a MinHold counts half", "memory", plant.Plants{"rest": with("s.keep-", "s.keep/2-")}, kept, nil, 0, 0},
	{"core: the process keeps no MinHold", "file", plant.Plants{
		"file-linger": is(""), "linger": is("s.phase = releasing\nreturn effects{do: release, within: s.left(f)}"),
	}, kept, nil, 0, 0},
	{"core: a reserved token is used twice", "memory", plant.Plants{"handoff-token": with("handoffs)", "handoffs) / 2")}, []check.Rule{check.RuleTokens}, nil, 0, 0},

	{"core: nothing recalls a kept lock", "memory", plant.Plants{"kept-watch": with("l.idPrefix", `""`)}, late, []string{}, 0, 0},
	{"core: Close does not release a kept lock", "memory", plant.Plants{"closed-kept": with(" | releaseLater", "")}, leftovers, []string{"close"}, 0, 0},
	{"core: a kept lock is taken with the token before", "memory", plant.Plants{
		"taken": is("s.valid, s.since, s.keep = e.valid, f.now, 0"),
	}, []check.Rule{check.RuleTokens}, []string{}, 0, 0},
	{"sticky: a lock is kept for too long", "memory", plant.Plants{"kept-time": with("f.sticky", "100*f.sticky")}, late, []string{}, 0, 0},

	{"every: replicas count the slots on their own", "memory", plant.Plants{"every-slot": with("e.index", "int(time.Now().UnixNano()/1000+int64(e.index))")}, every, nil, 0, 0},
	{"every: the marker of a served tick ends at once", "memory", plant.Plants{"every-marker": with("t.settled()", "t.at")}, every, []string{"close"}, 0, 0},
	{"every: the marker of a served tick hides later ticks", "memory", plant.Plants{
		"every-marker": with("t.settled()", "t.settled().Add(2 * time.Second)"), "every-other": with("at.IsZero() || at.Equal(t.at)", "true"),
	}, every, []string{}, 200 * time.Millisecond, 0},
	{"every: no replica watches", "memory", plant.Plants{"every-watch": is("if true {")}, every, []string{"vanish"}, 200 * time.Millisecond, 0},
	{"once: the mark is not read under the lock", "memory", plant.Plants{"once-mark": with("mark != nil", "mark != nil && mark.PID < 0")}, []check.Rule{check.RuleOnce}, nil, 0, 0},
	{"sequence: a block overlaps the one before", "memory", plant.Plants{"sequence-block": with("end - n", "end - n - 1")}, ids, nil, 0, 0},
	{"values: a write without an answer is a conflict", "memory", plant.Plants{"values-unknown": with("ErrUnknown", "ErrConflict")}, values, []string{"drop-answers"}, 0, 0},
	{"memory: a write ignores the version", "memory", plant.Plants{"memory-version": is("if false {")}, values, nil, 0, 0},
	{"memory: versions repeat", "memory", plant.Plants{"memory-value": with("rand.Text()", "rand.Text()[:1]")}, values, nil, 0, 0},
	{"file: a write ignores the version", "file", plant.Plants{"file-version": is("case now != version && version == \"\":")}, values, nil, 0, 0},

	{"memory: a MinHold ends with the TTL", "memory", plant.Plants{"memory-keep": with("keep", "min(keep, e.ttl)")}, kept, nil, 0, 0},
	{"memory: a MinHold counts three times", "memory", plant.Plants{"memory-keep": with("keep", "3*keep")}, late, []string{"cut"}, 0, 0},
	{"memory: a short grant stands as long as a long one", "memory", plant.Plants{
		"memory-expired": is("expired := func(*entry) bool { return !slices.ContainsFunc(n.holders, func(o *entry) bool { return now < o.expires }) }"),
	}, late, []string{"vanish"}, 900 * time.Millisecond, 0},
	{"memory: release by name, for any client", "memory", plant.Plants{"memory-owner": is("if e != nil {")}, []check.Rule{check.RuleExclusion, check.RuleLeftovers}, nil, 0, 0},
	{"memory: a lease runs out early", "memory", plant.Plants{"memory-expiry": with("e.ttl)", "e.ttl / 3)")}, exclusion, nil, 0, 0},
	{"memory: expiry ignored", "memory", plant.Plants{"memory-expiry": with("e.ttl)", "e.ttl + time.Hour)")}, forever, []string{"vanish"}, 0, 0},
	{"memory: wake no waiter", "memory", plant.Plants{"memory-wake": is("")}, waiting, nil, 0, 0},
	{"memory: the queue is lost", "memory", plant.Plants{"memory-queue": is("if n.admits(e.limit) {")}, order, nil, 0, 0},
	{"memory: two shared and one exclusive", "memory", plant.Plants{"memory-rule": with("< least", "< least || limit == driver.Exclusive && len(n.holders) == 2")}, exclusion, nil, 0, 0},
	{"memory: one permit too many", "memory", plant.Plants{"memory-rule": with("< least", "< least || least > 1 && len(n.holders) == least")}, exclusion, nil, 0, 0},
	{"memory: tokens from a coarse clock", "memory", plant.Plants{"memory-token": is("e.token = uint64(time.Now().UnixMilli())")}, []check.Rule{check.RuleTokens}, nil, 0, 0},
	{"memory: a reserved token belongs to two grants", "memory", plant.Plants{"memory-reserved": is("sp.token++")}, []check.Rule{check.RuleTokens}, nil, 0, 0},
	{"memory: undo leaves the grant", "memory", plant.Plants{"memory-undo": with("== r.ID", "== r.ID && e.token == 0")}, leftovers, []string{"drop-answers", "lose-answer", "cut"}, 0, 0},

	{"file: a token repeats after a restart of the counter", "file", plant.Plants{
		"file-clock": is("_ = last"),
		"file-boot": func(line string) string {
			return "if len(b.entries) == 0 && b.length == 0 {\nb.last -= min(b.last, 2)\n}\n" + line
		},
	}, []check.Rule{check.RuleTokens, check.RuleRegister}, nil, 0, 0},
	{"file: a reserved token belongs to two grants", "file", plant.Plants{"file-reserved": is("b.last++"), "file-clock": is("_ = last")}, []check.Rule{check.RuleTokens}, nil, 0, 0},
	{"file: a MinHold ends at the unlock", "file", plant.Plants{"file-keep": is("if keep < 0 {")}, kept, nil, 0, 0},
	{"file: skip the owner check", "file", plant.Plants{"file-owner": with("e.id == id", "(e.id == id || len(id) > 0)")}, []check.Rule{check.RuleExclusion, check.RuleTokens, check.RuleWaiting, check.RuleOrder}, nil, 0, 0},
	{"file: a dead client counts as alive", "file", plant.Plants{"file-life": is("if fd < 0 {")}, exclusion, nil, 0, 0},
	{"file: dead clients hold forever", "file", plant.Plants{"file-life": is("if fd >= 0 {")}, forever, nil, 0, 0},
	{"file: wake no waiter", "file", plant.Plants{"file-wake": is("")}, waiting, []string{}, 0, 0},
	{"file: the queue is lost", "file", plant.Plants{"file-rule": is("return holders+1 > min(least, limit)")}, order, nil, 0, 0},
	{"file: a reader beside a writer", "file", plant.Plants{"file-rule": with("least, ", "least+limit, ")}, exclusion, nil, 0, 0},
}

// simulated are mistakes in what surrounds the state machines of the core, and in shared locks and semaphores, which
// the exploration leaves out. The simulation must find them, and the mistakes of the core among mutations.
var simulated = []mutation{
	{name: "core: a waiter gets a lease of another limit", plants: plant.Plants{"accepts": with("w.set.limit == r.Limit && ", "")}},
	{name: "core: LockAll keeps a part", plants: plant.Plants{"all-or-none": with("under)", "under[:0])")}},
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
			ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute) // seconds are enough for most
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

// TestSimulationFindsMistakes builds the simulation on a copy of the source with each mistake, and runs it until
// a rule convicts the mistake. It needs no server.
func TestSimulationFindsMistakes(t *testing.T) {
	if testing.Short() {
		t.Skip("builds the check many times over")
	}
	marks := marks(t)
	for _, m := range slices.Concat(mutations, simulated) {
		if !strings.HasPrefix(m.name, "core: ") {
			continue
		}
		t.Run(m.name, func(t *testing.T) {
			t.Parallel()
			bin, err := plant.BuildTest(t.TempDir(), "github.com/holdfast-go/holdfast/check", marks, m.plants)
			must.Succeed(t, err)
			began := time.Now()
			run := exec.CommandContext(t.Context(), bin, "-test.run", "^TestSimulationKeepsEveryRule$", "-simulate", "1m", "-test.timeout", "5m")
			out, err := run.CombinedOutput()
			convicted := slices.ContainsFunc([]string{"-seed ", "blocked goroutines remain", "test timed out"},
				func(text string) bool { return bytes.Contains(out, []byte(text)) })
			if err == nil || !convicted {
				t.Fatalf("not found, %v:\n%s", err, out)
			}
			t.Logf("found after %s:\n%s", time.Since(began).Round(100*time.Millisecond), out)
		})
	}
}

// TestEveryMarkIsPlanted requires that a mistake is planted at every mark in the source, here or for the exploration
// of the core.
func TestEveryMarkIsPlanted(t *testing.T) {
	explored, err := os.ReadFile("../explore_mistakes_test.go")
	must.Succeed(t, err)
	for mark, path := range marks(t) {
		planted := strings.Contains(string(explored), strconv.Quote(mark)+": plant.")
		if !planted && !slices.ContainsFunc(slices.Concat(mutations, simulated), func(m mutation) bool { return m.plants[mark] != nil }) {
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
	must.Succeed(t, err)
	return bin
}

// marks returns the marks of the core and of the stores in this process.
func marks(t *testing.T) map[string]string {
	t.Helper()
	found, err := plant.Marks("memstore", "filestore", "optimistic", "sequence")
	must.Succeed(t, err)
	return found
}

// duration returns the duration of a check. The rules about lateness, and about ticks that are left out,
// judge only what is seconds old.
func (m *mutation) duration() time.Duration {
	if slices.Index(m.rules, check.RuleLate) == 0 || slices.Index(m.rules, check.RuleEvery) == 0 {
		return 26 * time.Second // its second round takes 10 s
	}
	return 4 * time.Second
}

// workers returns the number of workers, 0 for the default. The rule about lateness needs a place that one client
// wants, beside another one that is taken for long.
func (m *mutation) workers() int {
	if slices.Index(m.rules, check.RuleLate) == 0 || slices.Index(m.rules, check.RuleEvery) == 0 {
		return 8
	}
	return 0
}

func (m *mutation) torture(ctx context.Context, t *testing.T, bin string, seed uint64) *check.Report {
	t.Helper()
	config, err := json.Marshal(check.Config{Local: m.local, Seed: seed, Duration: m.duration(), Faults: m.faults, TTL: m.ttl, Long: m.long, Workers: m.workers(), Dir: filepath.Join(t.TempDir(), "run")})
	must.Succeed(t, err)
	cmd := exec.CommandContext(ctx, bin, string(config))
	var said bytes.Buffer
	cmd.Stderr = &said
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("no verdict after four minutes: %v (%v)\n%s", err, ctx.Err(), said.String())
	}
	r := &check.Report{}
	must.Succeed(t, json.Unmarshal(out, r))
	return r
}
