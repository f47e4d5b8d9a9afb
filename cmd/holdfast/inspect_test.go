//go:build linux || darwin

package main_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast"
)

// listed contains the fields of a lock that the tests read from the JSON of ls and show.
type listed struct {
	Name    string
	Held    bool
	Holders []struct {
		Token, ID, Host, Reason, Mode, Note string
		PID                                 int
		Slot, Limit                         *int
		Since                               time.Time
		Age                                 float64  `json:"age_seconds"`
		TTL                                 *float64 `json:"ttl_seconds"`
	}
	Waiters []struct {
		Position          int
		Host, Reason, ID  string
		Age               float64 `json:"age_seconds"`
		PID               int
		Mode              string
		Limit             *int
		Instance, Strange string
	}
}

// waitFor adds a waiter of a new client to the queue of a name, and returns when the waiter is
// queued. The waiter stays there until the test ends.
func (w *sandbox) waitFor(name, reason string) {
	w.t.Helper()
	l, err := holdfast.Open(w.t.Context(), w.storeURL())
	must(w.t, err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		// A granted lock is held until the test ends.
		_, _ = l.Lock(ctx, name, holdfast.Reason(reason))
		<-ctx.Done()
	}()
	w.t.Cleanup(func() { cancel(); <-done; _ = l.Close(context.Background()) })
	watching, stop := context.WithTimeout(w.t.Context(), waitLimit())
	defer stop()
	for st, err := range l.Watch(watching, name) {
		must(w.t, err)
		if slices.ContainsFunc(st.Waiters, func(o holdfast.Waiter) bool { return o.Reason == reason }) {
			return
		}
	}
	w.t.Fatalf("%s never waited for %s", reason, name)
}

// TestListShowsManyNames lists 1,000 names and 200 waiters.
func TestListShowsManyNames(t *testing.T) {
	const names, queues, each = 1000, 20, 10
	w := withStore(t)
	l := w.locker()
	locks := map[string]*holdfast.Lock{}
	var want []string
	for i := range names {
		// The test acquires the locks in another order than that of their names.
		name := fmt.Sprintf("job/%03d", i*337%names)
		lock := mustLock(t, l, name, holdfast.Reason("holds "+name))
		locks[name] = lock
		want = append(want, name)
	}
	slices.Sort(want)
	waiters := map[string][]string{}
	for i := range queues * each {
		name := want[i%queues*(names/queues)]
		reason := fmt.Sprintf("waiter %d", i)
		w.waitFor(name, reason)
		waiters[name] = append(waiters[name], reason)
	}

	check := func(got listed) {
		t.Helper()
		var queue []string
		for i, o := range got.Waiters {
			if o.Position != i+1 || o.PID != os.Getpid() || o.Mode != "exclusive" {
				t.Errorf("%s: waiter %+v", got.Name, o)
			}
			queue = append(queue, o.Reason)
		}
		if !slices.Equal(queue, waiters[got.Name]) {
			t.Errorf("%s: the queue is %q, want %q", got.Name, queue, waiters[got.Name])
		}
		if !got.Held || len(got.Holders) != 1 {
			t.Fatalf("%s: %+v", got.Name, got)
		}
		h := got.Holders[0]
		if h.Token != strconv.FormatUint(locks[got.Name].Token(), 10) || h.Reason != "holds "+got.Name || h.PID != os.Getpid() ||
			h.Mode != "exclusive" || *h.Limit != 1 || h.Slot != nil || h.TTL != nil || time.Since(h.Since) < 0 || h.Age < 0 {
			t.Errorf("%s: holder %+v", got.Name, h)
		}
	}
	var all struct {
		At    time.Time
		Locks []listed
	}
	began := time.Now()
	r := w.run("ls", "--json")
	t.Logf("ls --json of %d names and %d waiters: %v", names, queues*each, time.Since(began))
	decode(t, r, &all)
	if len(all.Locks) != names || all.At.Location() != time.UTC {
		t.Fatalf("%d names at %v", len(all.Locks), all.At)
	}
	for i, got := range all.Locks {
		if got.Name != want[i] {
			t.Fatalf("name %d is %q, want %q", i, got.Name, want[i])
		}
		check(got)
	}

	began = time.Now()
	r = w.run("ls")
	t.Logf("ls: %v", time.Since(began))
	r.expectStatus(t, 0)
	rows := strings.Split(strings.TrimSuffix(r.stdout, "\n"), "\n")
	if len(rows) != names {
		t.Fatalf("%d lines", len(rows))
	}
	for i, row := range rows {
		f := strings.Split(row, "\t")
		if len(f) != 12 || f[0] != want[i] || f[1] != "held" || f[3] != strconv.FormatUint(locks[want[i]].Token(), 10) || f[11] != strconv.Itoa(len(waiters[want[i]])) {
			t.Fatalf("line %d: %q", i, row)
		}
	}
	if n := strings.Count(w.run("ls", "--waiters").stdout, "\n"); n != names+queues*each {
		t.Errorf("%d lines with the waiters", n)
	}
	if got := w.run("ls", "job/99").stdout; strings.Count(got, "\n") != 10 || !strings.HasPrefix(got, "job/990\t") {
		t.Errorf("with a prefix:\n%s", got)
	}
	if r := w.run("ls", "nothing"); r.stdout != "" || r.status != 0 {
		t.Errorf("with a prefix of nothing: %+v", r)
	}

	began = time.Now()
	var one listed
	r = w.run("show", "--json", want[0])
	t.Logf("show --json: %v", time.Since(began))
	decode(t, r, &one)
	check(one)

	p := w.start("watch", "--json")
	type event struct {
		Time           time.Time
		Name, Event    string
		Holder, Waiter *struct{ Reason, Token string }
	}
	next := func() (e event) {
		t.Helper()
		line := p.stdout.expect(`{"time":`)
		if err := json.Unmarshal([]byte(line), &e); err != nil {
			t.Fatalf("%v: %s", err, line)
		}
		return e
	}
	began = time.Now()
	for _, name := range want {
		if e := next(); e.Name != name || e.Event != "held" || e.Holder.Reason != "holds "+name ||
			e.Holder.Token != strconv.FormatUint(locks[name].Token(), 10) || e.Time.Location() != time.UTC {
			t.Fatalf("%s: %+v", name, e)
		}
		for _, reason := range waiters[name] {
			if e := next(); e.Name != name || e.Event != "waiting" || e.Waiter.Reason != reason {
				t.Fatalf("%s: %+v, want %s", name, e, reason)
			}
		}
	}
	t.Logf("watch, until all was printed: %v", time.Since(began))
	must(t, locks[want[0]].Unlock())
	if e := next(); e.Name != want[0] || e.Event != "released" {
		t.Errorf("%+v", e)
	}
	if e := next(); e.Name != want[0] || e.Event != "granted" || e.Holder.Reason != "waiter 0" {
		t.Errorf("%+v", e)
	}
	p.signal(syscall.SIGTERM)
	p.expectStatus(143)
}

// TestShowDescribesLock: show prints the holders and the waiters of a held lock. It reports
// that a free lock is free.
func TestShowDescribesLock(t *testing.T) {
	w := withStore(t)
	if r := w.run("show", "x"); r.status != 0 || r.stdout != "x is free\n" || r.stderr != "" {
		t.Errorf("%+v", r)
	}
	var got listed
	decode(t, w.run("show", "--json", "x"), &got)
	if got.Name != "x" || got.Held || got.Holders == nil || got.Waiters == nil {
		t.Errorf("free: %+v", got)
	}

	holder := w.hold("--limit", "3", "--reason", "the nightly job", "x")
	waiter := w.start("run", "--reason", "in line", "x", "--", "true")
	awaitQueue(t, w.locker(), 1)
	decode(t, w.run("show", "--json", "x"), &got)
	if h := got.Holders[0]; h.PID != holder.guardian() || h.Mode != "limit 3" || *h.Limit != 3 || *h.Slot != 0 {
		t.Errorf("holder: %+v", h)
	}
	if o := got.Waiters[0]; o.PID != waiter.guardian() || o.Mode != "exclusive" || *o.Limit != 1 || o.Reason != "in line" {
		t.Errorf("waiter: %+v", o)
	}
	r := w.run("show", "x").expectStatus(t, 0)
	contains(t, r.stdout, "x is held\n", fmt.Sprintf("pid %d on ", holder.guardian()), "(the nightly job)",
		got.Holders[0].Token, "limit 3", "slot   0", "1 waiting\n", "(in line), exclusive, since ")
	if strings.Contains(r.stdout, "stopped") {
		t.Errorf("no holder is stopped:\n%s", r.stdout)
	}
	holder.stopGuardian()
	if r := w.run("show", "x"); !strings.Contains(r.stdout, "note   stopped") {
		t.Errorf("no note:\n%s", r.stdout)
	}
	holder.continueGuardian()
	holder.send("exit 0")
	waiter.expectStatus(0)
	if r := w.run("ls"); r.stdout != "" || r.status != 0 {
		t.Errorf("afterwards: %+v", r)
	}
}

// TestStrangeNamesAreQuoted: another client's name and reason contain characters that control a
// terminal. The subcommands print them quoted.
func TestStrangeNamesAreQuoted(t *testing.T) {
	const name, reason = "a\x1b]0;owned\x07\u009b2J", "r\x1b[2J\ttab\nline\u202e"
	w := withStore(t)
	l := w.locker()
	mustLock(t, l, name, holdfast.Reason(reason))
	w.waitFor(name, reason)
	for _, args := range [][]string{{"ls"}, {"ls", "--waiters"}, {"ls", "--json"}, {"show", name}, {"show", "--json", name},
		{"break", "--token", "1", name}, {"break", name}, {"__complete", "show", "a"}} {
		r := w.run(args...)
		for _, c := range "\x1b\x07\u009b\u202e" {
			if strings.ContainsRune(r.stdout+r.stderr, c) {
				t.Errorf("%q prints %q:\n%q\n%q", args, c, r.stdout, r.stderr)
			}
		}
		if r.stdout+r.stderr == "" {
			t.Errorf("%q prints nothing", args)
		}
	}
	var got listed
	decode(t, w.run("show", "--json", name), &got)
	if got.Name != name || got.Holders[0].Reason != reason {
		t.Errorf("%+v", got)
	}
	if r := w.run("ls"); strings.Count(r.stdout, "\n") != 1 || strings.Count(r.stdout, "\t") != 11 {
		t.Errorf("ls: %q", r.stdout)
	}
}

// TestNamespaceSeparatesApplications: a subcommand without --namespace does not see the locks of a
// namespace.
func TestNamespaceSeparatesApplications(t *testing.T) {
	w := withStore(t)
	w.hold("--namespace", "app", "x")
	if r := w.run("ls"); r.stdout != "" {
		t.Errorf("seen from outside: %q", r.stdout)
	}
	if r := w.run("ls", "--namespace", "app"); !strings.HasPrefix(r.stdout, "x\theld\t") {
		t.Errorf("not seen: %q", r.stdout)
	}
	if r := w.run("show", "--namespace", "app", "x"); !strings.Contains(r.stdout, "x is held") {
		t.Errorf("not seen: %q", r.stdout)
	}
}

// TestListNamesDefaultStore: if the user gives no store, ls prints the default one, like run.
func TestListNamesDefaultStore(t *testing.T) {
	w := newSandbox(t)
	r := w.run("ls").expectStatus(t, 0)
	if !strings.Contains(r.stderr, "locks in "+w.home) || r.stdout != "" {
		t.Errorf("%+v", r)
	}
	if r := w.run("ls", "--store", "memory://"); !strings.Contains(r.stderr, "visible to one process only") {
		t.Errorf("stderr: %q", r.stderr)
	}
}

// TestJobIsShownAndBrokenByItsName: show, watch and break take the name of the row that ls prints for a job of Every.
// They show and break the lock of the present tick. The watch of all locks names the job, too.
func TestJobIsShownAndBrokenByItsName(t *testing.T) {
	w := withStore(t)
	for tick, err := range w.locker().Every(t.Context(), "job", holdfast.Period(time.Second)) {
		must(t, err)
		row := strings.Split(w.run("ls").expectStatus(t, 0).stdout, "\t")
		if row[0] != "job" {
			t.Fatalf("ls: %q", row)
		}
		var is listed
		decode(t, w.run("show", "--json", row[0]), &is)
		if !strings.HasPrefix(is.Name, "job:run-") || len(is.Holders) != 1 || is.Holders[0].Token != row[3] {
			t.Fatalf("show: %+v; ls: %q", is, row)
		}
		job, all := w.start("watch", row[0]), w.start("watch")
		for _, p := range []*process{job, all} {
			p.stdout.expect("\tjob\theld\texclusive\t" + row[3] + "\t")
		}
		ended := w.start("break", "--token", row[3], row[0])
		<-tick.Context().Done()
		defer ended.expectStatus(0)
		defer job.stdout.expect("\tjob\treleased\t")
		break
	}
}

// TestShowFindsDeadlock makes two clients wait for one another.
func TestShowFindsDeadlock(t *testing.T) {
	w := withStore(t)
	clients := map[string]*holdfast.Locker{}
	for instance, name := range map[string]string{"one": "a", "two": "b"} {
		l, err := holdfast.Open(t.Context(), w.storeURL(), holdfast.Process("h", instance))
		must(t, err)
		t.Cleanup(func() { _ = l.Close(context.Background()) })
		clients[instance] = l
		mustLock(t, l, name)
	}
	if got := w.run("show", "a"); strings.Contains(got.stdout, "deadlock") {
		t.Errorf("before:\n%s", got.stdout)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var waiters sync.WaitGroup
	defer waiters.Wait()
	defer cancel()
	for instance, name := range map[string]string{"one": "b", "two": "a"} {
		waiters.Go(func() { _, _ = clients[instance].Lock(ctx, name) })
		watching, stop := context.WithTimeout(t.Context(), waitLimit())
		for st, err := range clients[instance].Watch(watching, name) {
			must(t, err)
			if len(st.Waiters) > 0 {
				break
			}
		}
		stop()
	}
	got := w.run("show", "b")
	pid := os.Getpid()
	want := fmt.Sprintf("\npossible deadlock\n  pid %[1]d on h, one waits for b, held by pid %[1]d on h, two\n"+
		"  pid %[1]d on h, two waits for a, held by pid %[1]d on h, one\n", pid)
	if got.status != 0 || !strings.HasSuffix(got.stdout, want) {
		t.Errorf("status %d:\n%s%s", got.status, got.stdout, got.stderr)
	}
	var shown struct{ Deadlocks [][]struct{ Name string } }
	decode(t, w.run("show", "--json", "a"), &shown)
	if len(shown.Deadlocks) != 1 || len(shown.Deadlocks[0]) != 2 || shown.Deadlocks[0][0].Name != "b" {
		t.Errorf("%+v", shown)
	}
}
