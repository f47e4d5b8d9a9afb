//go:build linux || darwin

package filestore_test

import (
	"context"
	"errors"
	"os"
	"slices"
	"sync"
	"testing"

	"pgregory.net/rapid"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/filestore"
)

func TestGrantAndRelease(t *testing.T) {
	s := open(t, tempDir(t))
	g := take(t, s, "a", driver.Exclusive)
	if g.Token == 0 || g.Slot != driver.NoSlot || g.TTL != driver.Forever || g.SentAt.IsZero() || g.Name != "a" {
		t.Errorf("grant %+v", g)
	}
	if rs := s.Renew(testContext(t), []driver.Grant{g, {ID: g.ID, Name: "a", Token: g.Token + 1}}); rs[0].Err != nil || s.Classify(rs[1].Err) != driver.CodeNotHeld {
		t.Errorf("renewals %+v", rs)
	}
	wrong := g
	wrong.Token++
	wantCode(t, s, s.Release(testContext(t), wrong, 0), driver.CodeNotHeld)
	release(t, s, g)
	wantCode(t, s, s.Release(testContext(t), g, 0), driver.CodeNotHeld)
	if h := take(t, s, "a", driver.Exclusive); h.Token <= g.Token {
		t.Errorf("token %d after %d", h.Token, g.Token)
	}
}

func TestBusyNamesTheHolder(t *testing.T) {
	dir := tempDir(t)
	a, b := open(t, dir), open(t, dir)
	r := request("a", driver.Exclusive)
	r.From.(*requester).owner = driver.Owner{ID: r.ID, Host: "elsewhere", PID: 4711, Instance: "web-1", Reason: "billing"}
	g, err := a.Acquire(testContext(t), r)
	if err != nil {
		t.Fatal(err)
	}
	_, err = b.Acquire(testContext(t), request("a", driver.Exclusive))
	wantCode(t, b, err, driver.CodeBusy)
	busy, ok := errors.AsType[*driver.BusyError](err)
	if !ok || len(busy.Holders) != 1 {
		t.Fatalf("%#v", err)
	}
	h := busy.Holders[0]
	if h.ID != r.ID || h.Host != "elsewhere" || h.PID != 4711 || h.Instance != "web-1" || h.Reason != "billing" || h.Token != g.Token || h.Limit != 1 || h.Slot != driver.NoSlot || h.TTL != driver.Forever {
		t.Errorf("holder %+v", h)
	}
	release(t, a, g)
	st, err := b.Inspect(testContext(t), "a")
	if err != nil || len(st.Holders)+len(st.Waiters) != 0 || st.Name != "a" {
		t.Errorf("left behind: %+v, %v", st, err)
	}
}

func TestFIFOOverManyStores(t *testing.T) {
	dir := tempDir(t)
	holder := open(t, dir)
	g := take(t, holder, "a", driver.Exclusive)
	var waiters []*waiter
	var stores []*filestore.Store
	for range 12 {
		s := open(t, dir)
		s.NoFallback()
		stores = append(stores, s)
		waiters = append(waiters, queue(t, s, "a", driver.Exclusive))
	}
	st, err := holder.Inspect(testContext(t), "a")
	if err != nil || len(st.Waiters) != len(waiters) {
		t.Fatalf("%d waiters, %v", len(st.Waiters), err)
	}
	for i, w := range st.Waiters {
		if w.ID != waiters[i].r.ID {
			t.Fatalf("waiter %d is %s", i, w.ID)
		}
	}
	last := g
	release(t, holder, g)
	for i, p := range waiters {
		got := p.granted(t)
		if got.Token <= last.Token {
			t.Fatalf("waiter %d: token %d after %d", i, got.Token, last.Token)
		}
		for _, q := range waiters[i+1:] {
			select {
			case <-q.done:
				t.Fatalf("granted out of order: %v", q.err)
			default:
			}
		}
		last = got
		release(t, stores[i], got)
	}
}

func TestQueueWithinOneStore(t *testing.T) {
	s := open(t, tempDir(t))
	s.NoFallback()
	g := take(t, s, "a", driver.Exclusive)
	var waiters []*waiter
	for range 20 {
		waiters = append(waiters, queue(t, s, "a", driver.Exclusive))
	}
	for _, p := range waiters {
		release(t, s, g)
		g = p.granted(t)
	}
}

func TestReadersDoNotOvertakeAWriter(t *testing.T) {
	dir := tempDir(t)
	a, b, c := open(t, dir), open(t, dir), open(t, dir)
	for _, s := range []*filestore.Store{a, b, c} {
		s.NoFallback()
	}
	r1 := take(t, a, "a", driver.Unlimited)
	r2 := take(t, b, "a", driver.Unlimited)
	w := queue(t, c, "a", driver.Exclusive)
	_, err := a.Acquire(testContext(t), request("a", driver.Unlimited))
	wantCode(t, a, err, driver.CodeBusy)
	r3, r4 := queue(t, a, "a", driver.Unlimited), queue(t, b, "a", driver.Unlimited)
	release(t, a, r1)
	release(t, b, r2)
	g := w.granted(t)
	release(t, c, g)
	g3, g4 := r3.granted(t), r4.granted(t)
	if g3.Slot != driver.NoSlot || g4.Token != g3.Token+1 {
		t.Errorf("readers %+v and %+v", g3, g4)
	}
}

func TestSmallestFreeSlotIsGranted(t *testing.T) {
	s := open(t, tempDir(t))
	var gs []driver.Grant
	for i := range 3 {
		g := take(t, s, "a", 3)
		if g.Slot != i {
			t.Errorf("slot %d, want %d", g.Slot, i)
		}
		gs = append(gs, g)
	}
	p := queue(t, s, "a", 3)
	release(t, s, gs[1])
	if g := p.granted(t); g.Slot != 1 {
		t.Errorf("the free slot is 1, got %d", g.Slot)
	}
}

func TestNamespacesAreApart(t *testing.T) {
	dir := tempDir(t)
	a, b := open(t, dir), open(t, dir, filestore.Namespace("other"))
	take(t, a, "a", driver.Exclusive)
	take(t, b, "a", driver.Exclusive)
	for _, s := range []*filestore.Store{a, b} {
		n := 0
		for st, err := range s.List(testContext(t), "") {
			if err != nil || len(st.Holders) != 1 {
				t.Fatalf("%+v, %v", st, err)
			}
			n++
		}
		if n != 1 {
			t.Errorf("%d names", n)
		}
	}
}

func TestListIsSortedAndFiltered(t *testing.T) {
	s := open(t, tempDir(t))
	for _, n := range []string{"job/b", "job/a", "web", "job/ä", "jo"} {
		take(t, s, n, driver.Exclusive)
	}
	queue(t, s, "job/b", driver.Exclusive)
	var names []string
	for st, err := range s.List(testContext(t), "job/") {
		if err != nil {
			t.Fatal(err)
		}
		names = append(names, st.Name)
	}
	if want := []string{"job/a", "job/b", "job/ä"}; !slices.Equal(names, want) {
		t.Errorf("%q, want %q", names, want)
	}
}

// TestAdmissionFollowsRule makes random requests with mixed limits. It compares the grants with a simple
// implementation of the rule.
func TestAdmissionFollowsRule(t *testing.T) {
	dir := tempDir(t)
	s := []*filestore.Store{open(t, dir), open(t, dir)}
	rapid.Check(t, func(rt *rapid.T) {
		name := newID()
		type standing struct {
			g driver.Grant
			s *filestore.Store
		}
		var held []standing
		for range rapid.IntRange(1, 25).Draw(rt, "steps") {
			if len(held) > 0 && rapid.Bool().Draw(rt, "release") {
				i := rapid.IntRange(0, len(held)-1).Draw(rt, "which")
				if err := held[i].s.Release(context.Background(), held[i].g, 0); err != nil {
					rt.Fatal(err)
				}
				held = slices.Delete(held, i, i+1)
				continue
			}
			limit := rapid.SampledFrom([]int{1, 2, 3, 4, driver.MaxLimit, driver.Unlimited}).Draw(rt, "limit")
			allowed := len(held) < limit
			slots := map[int]bool{}
			for _, h := range held {
				allowed = allowed && len(held) < h.g.Limit
				slots[h.g.Slot] = true
			}
			by := s[rapid.IntRange(0, 1).Draw(rt, "store")]
			g, err := by.Acquire(context.Background(), request(name, limit))
			if allowed != (err == nil) {
				rt.Fatalf("limit %d beside %d: %v", limit, len(held), err)
			}
			if err != nil {
				continue
			}
			want := driver.NoSlot
			if limit > 1 && limit <= driver.MaxLimit {
				for want = 0; slots[want]; want++ {
				}
			}
			if g.Slot != want {
				rt.Fatalf("slot %d, want %d", g.Slot, want)
			}
			held = append(held, standing{g, by})
		}
		for _, h := range held {
			if err := h.s.Release(context.Background(), h.g, 0); err != nil {
				rt.Fatal(err)
			}
		}
	})
}

func TestMutualExclusionUnderLoad(t *testing.T) {
	dir := tempDir(t)
	var stores []*filestore.Store
	for range 4 {
		stores = append(stores, open(t, dir))
	}
	// These variables need no other synchronization, because the lock guards them. The race detector
	// checks that.
	var inside, total int
	var last uint64
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			s := stores[i%len(stores)]
			for range 60 {
				r := request("a", driver.Exclusive)
				r.Wait = true
				g, err := s.Acquire(testContext(t), r)
				if err != nil {
					t.Error(err)
					return
				}
				if inside++; inside != 1 {
					t.Errorf("%d inside", inside)
				}
				if g.Token <= last {
					t.Errorf("token %d after %d", g.Token, last)
				}
				last = g.Token
				inside--
				total++
				if err := s.Release(context.Background(), g, 0); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if total != 8*60 {
		t.Errorf("%d grants", total)
	}
}

func TestCloseRemovesSession(t *testing.T) {
	dir := tempDir(t)
	a, b := open(t, dir), open(t, dir)
	b.NoFallback()
	r := request("a", driver.Exclusive)
	if _, err := a.Acquire(testContext(t), r); err != nil {
		t.Fatal(err)
	}
	own := queue(t, a, "a", driver.Exclusive)
	other := queue(t, b, "a", driver.Exclusive)
	path := a.SessionPath()
	if err := a.Close(testContext(t)); err != nil {
		t.Fatal(err)
	}
	wantLost(t, r.From, driver.CauseClosed)
	wantCode(t, a, own.ended(t), driver.CodeClosed)
	other.granted(t)
	if err := a.Close(testContext(t)); err != nil {
		t.Errorf("closing again: %v", err)
	}
	for _, p := range []string{path, path + ".sock"} {
		if _, err := os.Lstat(p); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s is left: %v", p, err)
		}
	}
	ctx := testContext(t)
	_, err := a.Acquire(ctx, request("b", 1))
	wantCode(t, a, err, driver.CodeClosed)
	wantCode(t, a, a.Release(ctx, driver.Grant{Name: "b", ID: "x", Token: 1}, 0), driver.CodeClosed)
	wantCode(t, a, a.Undo(ctx, request("b", 1)), driver.CodeClosed)
	wantCode(t, a, a.Renew(ctx, []driver.Grant{{Name: "b", ID: "x", Token: 1}})[0].Err, driver.CodeClosed)
	wantCode(t, a, a.Break(ctx, "b", 1), driver.CodeClosed)
	wantCode(t, a, a.Watch(ctx, "b", func() {}), driver.CodeClosed)
	_, err = a.Inspect(ctx, "b")
	wantCode(t, a, err, driver.CodeClosed)
}

func TestInspectionMakesNoSession(t *testing.T) {
	s := open(t, tempDir(t))
	if _, err := s.Inspect(testContext(t), "a"); err != nil {
		t.Fatal(err)
	}
	for _, err := range s.List(testContext(t), "") {
		t.Fatalf("List yields a name or an error: %v", err)
	}
	if p := s.SessionPath(); p != "" {
		t.Errorf("the store has made session %s", p)
	}
	if _, err := os.Stat(s.BucketPath("a")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the store has made a bucket: %v", err)
	}
}

// TestWaitersWorkWithoutSockets: the test removes all sockets, so that the stores can send no message and
// watch no session. The waiters check by themselves.
func TestWaitersWorkWithoutSockets(t *testing.T) {
	dir := tempDir(t)
	a, b := open(t, dir), open(t, dir)
	g := take(t, a, "a", driver.Exclusive)
	take(t, b, "b", driver.Exclusive)
	for _, s := range []*filestore.Store{a, b} {
		if err := os.Remove(s.SessionPath() + ".sock"); err != nil {
			t.Fatal(err)
		}
	}
	p := queue(t, b, "a", driver.Exclusive)
	if a.Links()+b.Links() > 0 {
		t.Fatal("the stores are connected")
	}
	release(t, a, g)
	p.granted(t)
	// A request to end still reaches the holder.
	done := make(chan error, 1)
	go func() { done <- a.Break(testContext(t), "a", p.g.Token) }()
	wantLost(t, p.r.From, driver.CauseTaken)
	release(t, b, p.g)
	if err := <-done; err != nil {
		t.Error(err)
	}
}
