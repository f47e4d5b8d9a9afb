package redlock

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/holdfast-go/holdfast/driver"
)

// corrupt writes a set at the key of a held name, at each server.
func (f *fleet) corrupt(t testing.TB, _, name string) func() {
	keys, _ := f.do(0, "KEYS", "holdfast:redlock:l:*"+name).([]any)
	if len(keys) != 1 {
		t.Fatalf("keys of %q: %v", name, keys)
	}
	key := keys[0].(string)
	remove := func() {
		for i := range f.all {
			f.do(i, "DEL", key)
		}
	}
	remove()
	for i := range f.all {
		f.do(i, "SADD", key, "of another program")
	}
	return remove
}

// TestBrokenStateOfFleetIsRefused: another program has written to the counters of all servers. Acquire
// returns CodeRefused, and names the key.
func TestBrokenStateOfFleetIsRefused(t *testing.T) {
	for _, value := range []string{"a text", "-1", "nan", "9007199254740993", "1e300"} {
		f := start(t, 1, nil)
		s := f.open(t)
		f.do(0, "HSET", "holdfast:redlock", "least", value)
		_, err := s.Acquire(t.Context(), request(newName("broken"), ttl))
		if s.Classify(err) != driver.CodeRefused || !strings.Contains(err.Error(), `"holdfast:redlock"`) {
			t.Errorf("least=%q: %v", value, err)
		}
	}
}

// TestScriptsWithstandRandomRecords runs every script on keys that random writes have changed. If a script
// returns an error, that is the error of a broken record or of a wrong type, and it has changed no key. No
// script changes the lock of another ballot, or its deadline, except one that restores kept locks. Only a vote
// makes a lock, unless a tombstone stands.
func TestScriptsWithstandRandomRecords(t *testing.T) {
	f := start(t, 1, nil)
	ctx := t.Context()
	c := goredis.NewClient(&goredis.Options{Addr: f.all[0].Address()})
	defer func() { _ = c.Close() }()
	text := func(name string) string {
		b, err := os.ReadFile(filepath.Join("..", "..", "..", "redisstore", "redlock", "scripts", name+".lua"))
		check(t, err)
		return string(b)
	}
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rnd := rand.New(rand.NewPCG(seed, 1))
	pick := func(all ...string) string { return all[rnd.IntN(len(all))] }
	state := f.state(0)
	values := []string{"", "0", "-1", "nan", "inf", "1e300", "9007199254740993", "a text", "a\x00b",
		"b.1 1 1 1 o", "b.1", "* 1", strings.Repeat("9", 400), state["run"]}
	keys := []string{"lock", "state", "grave1", "grave2", "queue", "kept", "position"}
	dump := func(keys ...string) string {
		var b strings.Builder
		for _, key := range keys {
			fmt.Fprint(&b, key, f.do(0, "TYPE", key), f.do(0, "PEXPIRETIME", key))
			if text, err := c.Dump(ctx, key).Result(); err == nil {
				fmt.Fprintf(&b, "%q", text)
			}
		}
		return b.String()
	}
	rounds := 3000
	if testing.Short() {
		rounds = 1000
	}
	refused, voted := 0, 0
	for range rounds {
		now := fmt.Sprint(time.Now().UnixMicro())
		do := func(args ...string) { f.do(0, args...) }
		do(append([]string{"DEL"}, keys...)...)
		for field, value := range state {
			do("HSET", "state", field, value)
		}
		if rnd.IntN(2) == 0 {
			do("SET", "lock", pick("a.1 5 1 1000 1&x&&", "b.1 5 1 1000 1&x&&", pick(values...)))
		}
		for range rnd.IntN(3) {
			switch key := pick(keys...); rnd.IntN(5) {
			case 0:
				do("DEL", key)
				do(pick("SADD", "SET", "RPUSH"), key, pick(values...))
			case 1:
				key := pick("queue", "kept")
				do("DEL", key)
				do("ZADD", key, pick("1", "-inf", "inf", "1e300"), pick("a w", "*b.1 5 1 1000 1&x&& lock", pick(values...)))
			case 2:
				do("DEL", "state")
			case 3:
				do("SET", "position", pick("1 a", "1 b", now+" b", pick(values...)), "PX", pick("1000", "100000"))
			default:
				if f.do(0, "TYPE", "state") == "hash" {
					do("HSET", "state", pick("run", "withheld", "since", "wait", "max", "size", "least", "c1"), pick(values...))
				}
			}
		}
		var use []string
		var args []any
		name := pick("vote", "vote", "vote", "raise", "end", "renew", "read", "state", "withhold", "admit")
		switch name {
		case "vote":
			use, args = []string{"lock", "state", "grave1", "grave2", "queue", "position"},
				[]any{"a.1 5 1 1000 1&x&&", "a.1 ", "1000", "c1", "5", now, "60000000", "1", state["size"], pick("0", "1")}
			if rnd.IntN(2) == 0 {
				args = append(args, "a w", now, "5000", "1000")
			}
		case "raise":
			use, args = []string{"lock", "state"}, []any{"a.1 ", "a.1 7 1 1000 1&x&&", "c1", "7"}
		case "end":
			use, args = []string{"lock", "state", "grave1", "queue", "kept", "position"},
				[]any{"a.1 ", pick("0", "1000"), pick("0", "1000"), pick("", "a w"), pick("0", "1"), now, "60000000"}
		case "renew":
			use, args = []string{"lock", "grave1"}, []any{"a.1 ", "1000", now, "60000000"}
		case "read":
			use = []string{"lock"}
		case "state":
			use = []string{"state", "kept"}
		case "withhold":
			use, args = []string{"state"}, []any{now, "60000000", "1000", "0"}
		case "admit":
			use, args = []string{"state", "kept"}, []any{now, "60000000", state["run"], pick("0", "1"), "1000", "1", "c1", "5"}
			until := pick("1", "18446744073709551615", fmt.Sprint(time.Now().Add(time.Hour).UnixMicro()))
			args = append(args, "kept "+pick("*b.1 5 1 1000 1&x&& lock", pick(values...)), until)
		}
		lock := ""
		if f.do(0, "TYPE", "lock") == "string" {
			lock, _ = f.do(0, "GET", "lock").(string)
		}
		graves := f.do(0, "EXISTS", "grave1", "grave2")
		before, content := dump(keys...), dump("lock")
		script := goredis.NewScript(strings.Replace(text(name), "-- include run\n", text("run"), 1))
		answer, err := script.Run(ctx, c, use, args...).Result()
		if err != nil && err != goredis.Nil {
			refused++
			if text := err.Error(); !strings.Contains(text, "holdfast: broken record ") && !strings.Contains(text, "WRONGTYPE") {
				t.Fatalf("%s %q: %v", name, args, err)
			}
			if after := dump(keys...); after != before {
				t.Fatalf("%s %q: %v: a refused call has written\n%s\n%s", name, args, err, before, after)
			}
			continue
		}
		all, _ := answer.([]any)
		votes := name == "vote" && len(all) > 0 && all[0] == "G"
		if votes {
			voted++
		}
		if votes && graves != int64(0) {
			t.Fatalf("a vote beside %d tombstones", graves)
		}
		own := strings.HasPrefix(lock, "a.1 ") || strings.HasPrefix(lock, "*a.1 ")
		if own || lock == "" && votes || name == "admit" { // which restores kept locks
			continue
		}
		if after := dump("lock"); after != content {
			t.Fatalf("%s %q changes the lock from\n%s\nto\n%s", name, args, content, after)
		}
	}
	if refused < rounds/30 || voted < rounds/30 {
		t.Errorf("%d calls were refused, and %d voted", refused, voted)
	}
}
