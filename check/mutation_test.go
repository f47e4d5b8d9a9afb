//go:build linux || darwin

package check_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/check"
)

// edit is one substitution in a source file of the library.
type edit struct{ file, old, new string }

// mutation is a mistake that lock libraries have made, planted in the library's
// own source. The check has to find it.
type mutation struct {
	name  string
	local string
	edits []edit
	// rules: at least one of them must be what convicts.
	rules []check.Rule
	// faults are those that bring the mistake to light soon; nil for all.
	faults []string
	// ttl is how long leases last; shorter ones bring more faults into a round.
	ttl time.Duration
	// long is how many locks of a hundred are held beyond it, where that shows more.
	long int
}

var mutations = []mutation{
	{"core: trust from the receipt", "memory", []edit{
		{"acquire.go", "\tx.standing.grant = g\n", "\tx.standing.grant = g\n\tx.standing.grant.SentAt = driver.Now()\n"},
		{"serve.go", "\tx.standing.grant = g\n", "\tx.standing.grant = g\n\tx.standing.grant.SentAt = driver.Now()\n"},
		{"renew.go", "g.SentAt, g.TTL = a.SentAt, a.TTL", "g.SentAt, g.TTL = driver.Now(), a.TTL"},
	}, []check.Rule{check.RuleTrust, check.RuleExclusion}, []string{"delay", "cut"}, 0, 20},
	{"core: the context never ends", "memory", []edit{
		{"machine.go", "\t\treturn s.lose(driver.CauseExpired)\n", "\t\treturn effects{}\n"},
	}, []check.Rule{check.RuleTrust, check.RuleExclusion}, []string{"cut", "stop"}, 240 * time.Millisecond, 0},
	{"core: undo nothing", "memory", []edit{
		{"background.go", "err := l.store.Undo(ctx, x.req)", "err := error(nil)"},
	}, []check.Rule{check.RuleLeftovers}, nil, 0, 0},
	{"core: Close forgets what is held", "memory", []edit{
		{"machine.go", "endAll | reportLoss | releaseLater", "endAll | reportLoss"},
	}, []check.Rule{check.RuleLeftovers}, []string{"close"}, 0, 0},
	{"core: Unlock does not tell the store", "memory", []edit{
		{"release.go", "err := l.store.Release(l.bound(&b, o.holder.ctx, true, timeout), x.standing.grant, o.keep)", "_, err := o.keep, l.bound(&b, o.holder.ctx, true, timeout).Err()"},
	}, []check.Rule{check.RuleWaiting, check.RuleLeftovers}, nil, 0, 0},
	{"core: a goroutine stays behind", "memory", []edit{
		{"locker.go", "\treturn l\n", "\tgo func() { <-make(chan int) }()\n\treturn l\n"},
	}, []check.Rule{check.RuleLeftovers}, nil, 0, 0},
	{"core: trust beyond the lease", "memory", []edit{
		{"machine.go", "\t\ts.setValidity(e)\n", "\t\ts.setValidity(e)\n\t\ts.valid *= 2\n"},
	}, []check.Rule{check.RuleTrust, check.RuleExclusion}, nil, 0, 0},

	{"memory: release by name, whoever asks", "memory", []edit{
		{"memstore/space.go", "if e.id == g.ID && e.token == g.Token {", "if e != nil {"},
	}, []check.Rule{check.RuleExclusion, check.RuleLeftovers}, nil, 0, 0},
	{"memory: a lease runs out early", "memory", []edit{
		{"memstore/space.go", "e.expires = e.sent.Time().Add(e.ttl)", "e.expires = e.sent.Time().Add(e.ttl / 3)"},
	}, []check.Rule{check.RuleExclusion}, nil, 0, 0},
	{"memory: expiry ignored", "memory", []edit{
		{"memstore/space.go", "e.expires = e.sent.Time().Add(e.ttl)", "e.expires = e.sent.Time().Add(e.ttl + time.Hour)"},
	}, []check.Rule{check.RuleWaiting, check.RuleLeftovers}, []string{"vanish"}, 0, 0},
	{"memory: wake nobody", "memory", []edit{
		{"memstore/space.go", "\t\tclose(e.granted)\n", ""},
	}, []check.Rule{check.RuleWaiting}, nil, 0, 0},
	{"memory: the queue is lost", "memory", []edit{
		{"memstore/memstore.go", "if len(n.queue) == 0 && n.admits(e.limit) {", "if n.admits(e.limit) {"},
	}, []check.Rule{check.RuleOrder}, nil, 0, 0},
	{"memory: two shared and one exclusive", "memory", []edit{
		{"memstore/space.go", "return len(n.holders) < least", "return len(n.holders) < least || limit == driver.Exclusive && len(n.holders) == 2"},
	}, []check.Rule{check.RuleExclusion}, nil, 0, 0},
	{"memory: one permit too many", "memory", []edit{
		{"memstore/space.go", "return len(n.holders) < least", "return len(n.holders) < least || least > 1 && len(n.holders) == least"},
	}, []check.Rule{check.RuleExclusion}, nil, 0, 0},
	{"memory: tokens from a coarse clock", "memory", []edit{
		{"memstore/space.go", "\tsp.token++\n", "\tsp.token = uint64(time.Now().UnixMilli())\n"},
	}, []check.Rule{check.RuleTokens}, nil, 0, 0},
	{"memory: undo leaves the grant", "memory", []edit{
		{"memstore/memstore.go", "\t\t\tif e.id == r.ID {\n", "\t\t\tif e.id == r.ID && e.token == 0 {\n"},
	}, []check.Rule{check.RuleLeftovers}, []string{"drop-answers", "lose-answer", "cut"}, 0, 0},

	{"file: a token again after a restart of the counter", "file", []edit{
		{"filestore/bucket.go", "\tif b.boot != b.store.boot {", "\tif len(b.entries) == 0 && b.length == 0 {\n\t\tb.last -= min(b.last, 2)\n\t}\n\tif b.boot != b.store.boot {"},
	}, []check.Rule{check.RuleTokens, check.RuleRegister}, nil, 0, 0},
	{"file: skip the owner check", "file", []edit{
		{"filestore/queue.go", "e.id == id && e.is(k)", "e.is(k) && (e.id == id || len(id) > 0)"},
	}, []check.Rule{check.RuleExclusion, check.RuleTokens, check.RuleWaiting, check.RuleOrder}, nil, 0, 0},
	{"file: life without proof", "file", []edit{
		{"filestore/session.go", "if flock(fd, unix.LOCK_SH|unix.LOCK_NB) != nil {", "if fd < 0 {"},
	}, []check.Rule{check.RuleExclusion}, nil, 0, 0},
	{"file: the dead hold for ever", "file", []edit{
		{"filestore/session.go", "if flock(fd, unix.LOCK_SH|unix.LOCK_NB) != nil {", "if fd >= 0 {"},
	}, []check.Rule{check.RuleWaiting, check.RuleLeftovers}, nil, 0, 0},
	{"file: wake nobody", "file", []edit{
		{"filestore/queue.go", "st.notices = append(st.notices, notice{kind: tellGrant,", "_ = append(st.notices, notice{kind: tellGrant,"},
	}, []check.Rule{check.RuleWaiting}, []string{}, 0, 0},
	{"file: the queue is lost", "file", []edit{
		{"filestore/acquire.go", "return holders+1 > min(least, limit) || st.awaited(k)", "return holders+1 > min(least, limit)"},
	}, []check.Rule{check.RuleOrder}, nil, 0, 0},
	{"file: a reader beside a writer", "file", []edit{
		{"filestore/acquire.go", "return holders+1 > min(least, limit) ||", "return holders+1 > min(least+limit, limit) ||"},
	}, []check.Rule{check.RuleExclusion}, nil, 0, 0},
}

// shown tells whether a rule is one that may convict. Overlaps of microseconds the
// model alone may see: its rules are exclusion and rising tokens in one.
func (m *mutation) shown(r check.Rule) bool {
	return slices.Contains(m.rules, r) || r == check.RuleModel &&
		(slices.Contains(m.rules, check.RuleExclusion) || slices.Contains(m.rules, check.RuleTokens))
}

// TestMutationsAreConvicted plants each mistake in a copy of the library's
// source, builds the check on it, and lets it run until it convicts.
func TestMutationsAreConvicted(t *testing.T) {
	if testing.Short() {
		t.Skip("builds and tortures the library many times over")
	}
	root := sourceOf(t, "github.com/holdfast-go/holdfast")
	for _, m := range mutations {
		t.Run(m.name, func(t *testing.T) {
			t.Parallel()
			bin := m.build(t, root)
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute) // a quiet machine needs seconds
			defer cancel()
			began := time.Now()
			for seed := uint64(1); ; seed++ {
				r := m.torture(ctx, t, bin, seed)
				i := slices.IndexFunc(r.Violations, func(v check.Violation) bool { return m.shown(v.Rule) })
				if i < 0 && !r.OK() {
					t.Fatalf("convicted, but not of %v:%s", m.rules, explain(r))
				}
				if i < 0 {
					continue
				}
				v := r.Violations[i]
				if len(v.Excerpt) > 14 || len(v.Excerpt) == 0 && !strings.Contains(v.Text, "hand-overs") {
					t.Errorf("an excerpt of %d events cannot be read:%s", len(v.Excerpt), explain(r))
				}
				one := &check.Report{Violations: []check.Violation{v}, Start: r.Start}
				t.Logf("convicted after %s, seed %d:%s", time.Since(began).Round(100*time.Millisecond), seed, explain(one))
				return
			}
		})
	}
}

// TestUnmutated is the other half of the proof: the same build without a mistake
// is not convicted.
func TestUnmutated(t *testing.T) {
	if testing.Short() {
		t.Skip("builds the library")
	}
	m := mutation{}
	bin := m.build(t, sourceOf(t, "github.com/holdfast-go/holdfast"))
	t.Parallel() // no check is judged beside a compiler
	for _, local := range []string{"memory", "file"} {
		m.local = local
		if r := m.torture(t.Context(), t, bin, 1); !r.OK() {
			t.Errorf("%s: convicted an innocent:%s", local, explain(r))
		}
	}
}

func sourceOf(t *testing.T, pkg string) string {
	t.Helper()
	out, err := exec.Command("go", "list", "-f", "{{.Dir}}", pkg).Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	return strings.TrimSpace(string(out))
}

// build compiles testdata/torture with the mistake in place of the source.
func (m *mutation) build(t *testing.T, root string) string {
	t.Helper()
	dir := t.TempDir()
	source := map[string]string{}
	for _, e := range m.edits {
		path := filepath.Join(root, filepath.FromSlash(e.file))
		text, ok := source[path]
		if !ok {
			b, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			text = string(b)
		}
		if n := strings.Count(text, e.old); n != 1 {
			t.Fatalf("%s contains %q %d times, want once: the mutation must follow the source", e.file, e.old, n)
		}
		source[path] = strings.Replace(text, e.old, e.new, 1)
	}
	replace := map[string]string{}
	for path, text := range source {
		copied := filepath.Join(dir, fmt.Sprintf("%d-%s", len(replace), filepath.Base(path)))
		if err := os.WriteFile(copied, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		replace[path] = copied
	}
	overlay := filepath.Join(dir, "overlay.json")
	b, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(overlay, b, 0o600); err != nil {
		t.Fatal(err)
	}
	bin := filepath.Join(dir, "torture")
	if out, err := exec.Command("go", "build", "-overlay", overlay, "-o", bin, "./testdata/torture").CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	return bin
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
		t.Fatalf("after at most a minute no verdict: %v (%v)\n%s", err, ctx.Err(), said.String())
	}
	r := &check.Report{}
	if err := json.Unmarshal(out, r); err != nil {
		t.Fatal(err)
	}
	return r
}
