package zkstore

import (
	"fmt"
	"math"
	"testing"

	"pgregory.net/rapid"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/zkstore/internal/zk"
)

func TestSequenceOfNode(t *testing.T) {
	for name, want := range map[string]struct {
		seq   int32
		limit int
		ok    bool
	}{
		"_c_a4af9f9d-38fa-4ad5-ba5b-b1b6d6d1c7b7-__WRIT__0000000007":         {7, 1, true},
		"_c_a4af9f9d-38fa-4ad5-ba5b-b1b6d6d1c7b7-__READ__0000000008":         {8, driver.Unlimited, true},
		"_c_a4af9f9d-38fa-4ad5-ba5b-b1b6d6d1c7b7-sem3-__WRIT__0000000009":    {9, 3, true},
		"_c_a4af9f9d-38fa-4ad5-ba5b-b1b6d6d1c7b7-sem4096-__WRIT__0000000009": {9, 4096, true},
		"_c_a4af9f9d-38fa-4ad5-ba5b-b1b6d6d1c7b7-sem4097-__WRIT__0000000009": {9, 1, true}, // another client's node: a writer
		"__READ__0000000007":                 {7, driver.Unlimited, true}, // a downgrade
		"x-__WRIT__-2147483648":              {math.MinInt32, 1, true},
		"x-__WRIT__-000000001":               {-1, 1, true},
		"x-__WRIT__2147483647":               {math.MaxInt32, 1, true},
		"x-__WRIT__2147483648":               {},
		"x-__READ__00000000000":              {},
		"x-__WRIT__7":                        {},
		"x-__WRIT__":                         {},
		"x-__WRIT__+000000001":               {},
		"x-__WRIT__000000000a":               {},
		"0123456789abcdef__lock__0000000001": {},
		"_c_":                                {},
		"0000000001":                         {},
	} {
		n, ok := readWriteNode(name)
		if ok != want.ok || ok && (n.seq != want.seq || n.limit != want.limit) {
			t.Errorf("%s: %+v, %t", name, n, ok)
		}
	}
	for name, ok := range map[string]bool{
		"_c_a4af9f9d38fa4ad5ba5bb1b6d6d1c7b7-lock-0000000003":     true, // go-zookeeper's
		"_c_a4af9f9d-38fa-4ad5-ba5b-b1b6d6d1c7b7-lock--000000003": true,
		"a4af9f9d38fa4ad5ba5bb1b6d6d1c7b7__lock__0000000003":      false, // kazoo's own
	} {
		if _, got := mutexNode(name); got != ok {
			t.Errorf("%s: %t", name, got)
		}
	}
}

// TestOrderSurvivesWrap: the order continues when the sequence number wraps around. Nodes of other programs are
// ignored.
func TestOrderSurvivesWrap(t *testing.T) {
	var children []string
	for i := range 6 {
		children = append(children, fmt.Sprintf("x-__WRIT__%010d", int32(math.MaxInt32-2)+int32(i)))
	}
	children[0], children[4] = children[4], children[0]
	children = append(children, "readme", "_c_", "lock-0000000000")
	all := nodesOf(children, readWriteNode)
	for i := 1; i < len(all); i++ {
		if all[i].seq-all[i-1].seq != 1 {
			t.Errorf("%+v", all)
		}
	}
	if all[0].seq != math.MaxInt32-2 {
		t.Errorf("%+v", all)
	}
}

// TestDowngradeKeepsPosition: Curator downgrades a writer to a reader with the same number. The
// writer sorts before the reader.
func TestDowngradeKeepsPosition(t *testing.T) {
	all := nodesOf([]string{"r-__READ__0000000006", "d-__READ__0000000005", "w-__WRIT__0000000005"}, readWriteNode)
	if all[0].limit != 1 || all[1].seq != 5 || all[2].seq != 6 || countGrants(all) != 1 {
		t.Errorf("%+v", all)
	}
	if got := countGrants(all[1:]); got != 2 {
		t.Errorf("without the writer %d hold", got)
	}
}

// TestRuleMatchesDefinition compares the rule and the choice of the watched node with their
// definitions.
func TestRuleMatchesDefinition(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		limits := rapid.SliceOfN(rapid.SampledFrom([]int{1, 2, 3, 5, driver.Unlimited}), 1, 10).Draw(t, "limits")
		var all []node
		for i, l := range limits {
			all = append(all, node{fmt.Sprint(i), int32(i), l})
		}
		// This loop applies the rule to the entries one by one, in the order of their arrival.
		granted := 0
		for i, n := range all {
			ok := granted == i && i < n.limit
			for _, o := range all[:i] {
				ok = ok && i < o.limit
			}
			if !ok {
				break
			}
			granted++
		}
		if got := countGrants(all); got != granted {
			t.Fatalf("%v: %d hold, want %d", limits, got, granted)
		}
		for i := granted; i < len(all); i++ {
			set := toWatch(all, i)
			if len(set) == 0 {
				t.Fatalf("%v: entry %d watches no node", limits, i)
			}
			least := all[i].limit
			for _, n := range set {
				if n.seq >= int32(i) {
					t.Fatalf("%v: entry %d watches a node behind it", limits, i)
				}
				least = min(least, n.limit)
			}
			// While every node of the set exists, the entry is not granted, even if all other
			// nodes are deleted.
			if least > len(set) {
				t.Fatalf("%v: entry %d could be granted beside all of %v", limits, i, set)
			}
			if all[i].limit == 1 && (len(set) != 1 || set[0].seq != int32(i-1)) {
				t.Fatalf("%v: entry %d watches %v instead of its predecessor", limits, i, set)
			}
		}
	})
}

func TestNamesSurviveEncoding(t *testing.T) {
	for name, want := range map[string]string{
		"orders": "orders", "a/b": "a%2Fb", "a b": "a b", "%": "%25", "@x": "%40x", "x@": "x@", ".": "%2E", "..": "%2E.", "zookeeper": "%7Aookeeper",
		"ü": "ü", "\x00": "%00", "\u0085": "%C2%85", "\U0001F512": "%F0%9F%94%92", "\ufffd": "%EF%BF%BD", "...": "...",
	} {
		if got := escape(name); got != want {
			t.Errorf("%q: %q, want %q", name, got, want)
		}
	}
	for _, node := range []string{"%", "%2", "%zz", "%2f", "%61", "@", "@x", "%-x"} {
		if name, ok := unescape(node); ok {
			t.Errorf("%q is read as %q", node, name)
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		name := rapid.String().Draw(t, "name")
		if name == "" {
			return
		}
		node := escape(name)
		if got, ok := unescape(node); !ok || got != name {
			t.Fatalf("%q: %q: %q, %t", name, node, got, ok)
		}
		if checkChroot("/"+node) != "" || node[0] == '@' {
			t.Fatalf("%q: %q is no node", name, node)
		}
	})
	for path, ok := range map[string]bool{"": true, "/a": true, "/a/b": true, "a": false, "/": false, "/a/": false, "//a": false, "/a/../b": false, "/zookeeper": false, "/a\x01": false} {
		if got := checkChroot(path) == ""; got != ok {
			t.Errorf("%q: %t", path, got)
		}
	}
}

func TestProtectedNodesAreRecognised(t *testing.T) {
	p := protected("abc-1")
	// Shorter names make go-zookeeper's client panic.
	for name, ours := range map[string]bool{
		p + "lock-0000000001": true,
		"_c_a4af9f9d-38fa-4ad5-ba5b-b1b6d6d1c7b7-lock-0000000001": false, // Curator's
		"_c_0085e96ed9acf28a771a5634e6d9bae5-lock-0000000001":     false, // go-zookeeper's
	} {
		if isProtected(name) != ours {
			t.Errorf("%s: %t", name, !ours)
		}
	}
	if len(p) != prefixLen || p[:3] != "_c_" || p == protected("abc-2") || p != protected("abc-1") {
		t.Error(p)
	}
}

// TestTokenIsThatOfTheCreate: a queue entry keeps the token base with which it was made,
// whatever the session reads afterwards.
func TestTokenIsThatOfTheCreate(t *testing.T) {
	ss := &session{s: &store{recipe: recipes[ReadWrite], cfg: config{room: tokenRoom}}, ours: map[string]*grant{}, entries: map[string]map[*entry]struct{}{}}
	ss.guarded.base = tokenBase{Base: 1 << 40, since: 5, version: 1}
	_, known := ss.base()
	p, err := ss.entry(driver.Request{Limit: driver.Exclusive}, "/n", "/n/x__WRIT__0000000001", ss.s.token(known, 7), nil, driver.Now())
	if err != nil {
		t.Fatal(err)
	}
	ss.showBase(&zk.Call{Stat: zk.Stat{Version: 0}}) // the base in an older copy, from which the ensemble was restored
	if want := uint64(1<<40+7) * tokenRoom; p.token != want || ss.token(8) != want+tokenRoom {
		t.Errorf("token %d, and %d for the next, want %d", p.token, ss.token(8), want)
	}
}
