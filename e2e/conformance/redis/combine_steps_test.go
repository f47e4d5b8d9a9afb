package redis

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	goredis "github.com/redis/go-redis/v9"
)

// TestBatchesDoWhatPlainCallsDo makes the same random steps on two sets of names. For one set the steps
// are combined into batches, for the other each is a plain call. Replies, states, tokens and expiry are
// the same after each step.
func TestBatchesDoWhatPlainCallsDo(t *testing.T) {
	t.Parallel()
	r := start(t)
	ctx := t.Context()
	c := goredis.NewClient(&goredis.Options{Addr: r.Address()})
	defer func() { _ = c.Close() }()
	script := func(name string) *goredis.Script {
		s := strings.Replace(source(t, name), "-- include plain\n", source(t, "plain"), 1)
		return goredis.NewScript(observed + strings.Replace(s, "-- include common\n", source(t, "common"), 1))
	}
	batch, acquire, release, undo, breaks := script("combined"), script("acquire"), script("release"), script("undo"), script("break")
	compare := goredis.NewScript(observed + compared)
	const names = 4
	world := func(w, name int) string { return fmt.Sprintf("%c%d", "ab"[w], name) }
	clock := int64(1_800_000_000_000_000)
	var history []string
	fail := func(format string, args ...any) {
		t.Helper()
		t.Fatalf("after\n%s\n%s", strings.Join(history[max(0, len(history)-20):], "\n"), fmt.Sprintf(format, args...))
	}
	// run runs a script, and returns the words of its reply, or the first word of an error.
	run := func(s *goredis.Script, keys []string, args ...any) []string {
		t.Helper()
		v, err := s.Run(ctx, c, keys, args...).Result()
		if err != nil && err != goredis.Nil {
			word, _, _ := strings.Cut(err.Error(), " ")
			return []string{word}
		}
		return strings.Fields(strings.Trim(fmt.Sprint(v), "[]"))
	}
	keysOf := func(w, name int, counter bool) []string {
		if key := world(w, name); counter {
			return []string{key, "counter:" + key}
		} else {
			return []string{key}
		}
	}
	type step struct {
		name      int
		id        string // of an acquire
		late      int64
		highWater int64
		args      []any // of the plain script
	}
	plain := func(w int, s step) []string {
		if s.id == "" {
			return run(release, keysOf(w, s.name, false), s.args...)
		}
		return run(acquire, keysOf(w, s.name, true), s.args...)
	}
	random := rand.New(rand.NewPCG(16, 7))
	type grant struct{ id, token string }
	held := make([][]grant, names)
	learn := func(s step, reply []string) {
		switch {
		case s.id == "" || reply[0][0] != 'G':
		case len(reply) == 1:
			held[s.name] = append(held[s.name], grant{s.id, reply[0][1:]})
		default:
			held[s.name] = append(held[s.name], grant{s.id, reply[2]})
		}
	}
	do := func(args ...any) {
		if err := c.Do(ctx, args...).Err(); err != nil && err != goredis.Nil {
			t.Fatal(err)
		}
	}
	ids, letters := 0, map[string]int{}
	var spoiled [names]bool // these names have a bad counter or key, which the next round removes
	rounds := 3000
	if testing.Short() {
		rounds = 800
	}
	for range rounds {
		switch random.IntN(50) {
		case 0:
			clock += int64(random.IntN(3e6))
		case 1:
			clock -= int64(random.IntN(5000))
		default:
			clock += int64(random.IntN(300))
		}
		do("HSET", "clock", "s", clock/1e6, "us", clock%1e6)
		for name := range names {
			what := random.IntN(100)
			if spoiled[name] {
				what = 4
			}
			spoiled[name] = what == 2 || what == 3
			for w := range 2 {
				key := world(w, name)
				if life, err := c.Get(ctx, "life:"+key).Int64(); err == nil && life < clock/1000 {
					do("DEL", key, "life:"+key)
				}
				switch what {
				case 0: // the server has lost its counter of tokens
					do("DEL", "counter:"+key)
				case 1: // another name of the bucket was granted
					do("SET", "counter:"+key, clock+clock%5-2)
				case 2:
					do("SET", "counter:"+key, "9007199254740991")
				case 3: // the key belongs to something else
					do("DEL", key, "life:"+key)
					do("SET", key, "value")
				case 4:
					do("DEL", key, "life:"+key, "counter:"+key)
				}
			}
		}
		request := func(name int) step {
			ids++
			limit, ttl := 1, []int64{30e6, 30e6, 2e6, 1e6 + 1}[random.IntN(4)]
			if random.IntN(20) == 0 {
				limit = 2
			}
			s := step{name: name, id: fmt.Sprint("id", ids), late: clock + 1e7}
			if random.IntN(50) == 0 {
				s.late = clock - int64(random.IntN(2))
			}
			if random.IntN(50) == 0 {
				s.highWater = clock + int64(random.IntN(5)) - 2
			}
			s.args = []any{fmt.Sprintf("%d p:channel 77&host&& %s", limit, s.id), fmt.Sprint(ttl), fmt.Sprint(ttl/1000 + 2), fmt.Sprint(s.late), fmt.Sprint(s.highWater)}
			return s
		}
		if random.IntN(4) == 0 { // a step that is never combined
			var replies [2][]string
			name := random.IntN(names)
			s, what := request(name), random.IntN(4)
			for w := range 2 {
				switch {
				case what == 0:
					s := s
					s.args = append(slices.Clone(s.args), "1", "0", "0") // the request makes a queue entry
					replies[w] = plain(w, s)
				case what == 1 && len(held[name]) > 0:
					g := held[name][0]
					replies[w] = run(undo, keysOf(w, name, false), g.id, fmt.Sprint(clock+int64(ids%2000)))
				case what == 2 && len(held[name]) > 0:
					replies[w] = run(breaks, keysOf(w, name, false), held[name][0].token)
				case len(held[name]) > 0:
					g := held[name][0]
					replies[w] = run(release, keysOf(w, name, false), fmt.Sprintf(" %s %s ", g.id, g.token), "0", fmt.Sprint(ids%5000), "0")
				}
			}
			history = append(history, fmt.Sprint(clock, " single ", what, " ", name, replies))
			if !slices.Equal(replies[0], replies[1]) {
				fail("%v and %v", replies[0], replies[1])
			}
		}
		var steps []step
		for range 1 + random.IntN(8) {
			name := random.IntN(names)
			if n := len(held[name]); n > 0 && random.IntN(3) > 0 {
				i := random.IntN(n)
				steps = append(steps, step{name: name, args: []any{fmt.Sprintf(" %s %s ", held[name][i].id, held[name][i].token)}})
				if random.IntN(4) > 0 { // otherwise a later step releases it again
					held[name] = slices.Delete(held[name], i, i+1)
				}
				continue
			}
			steps = append(steps, request(name))
		}
		var keys []string
		args, late, floor, ttl := []any{"", ""}, int64(1)<<60, int64(0), ""
		for _, s := range steps {
			keys = append(keys, keysOf(0, s.name, s.id != "")...)
			if s.id != "" {
				late, floor = min(late, s.late), max(floor, s.highWater)
				if own := fmt.Sprintf("+%v %v", s.args[1], s.args[2]); own != ttl {
					ttl = own
					args = append(args, own)
				}
			}
			args = append(args, s.args[0])
		}
		args[0], args[1] = fmt.Sprint(late), fmt.Sprint(floor)
		answer, err := batch.Run(ctx, c, keys, args...).StringSlice()
		history = append(history, fmt.Sprint(clock, " batch ", keys, " ", args, " ", answer))
		if err != nil || len(answer) < 2 || len(answer[1]) != len(steps) {
			fail("%q, %v", answer, err)
		}
		more := answer[2:]
		var again []step
		for i, s := range steps {
			letter := answer[1][i : i+1]
			letters[letter]++
			var reply []string
			switch letter {
			case "F":
				again = append(again, s)
				continue
			case "G":
				reply = []string{"G" + answer[0]}
			case "*":
				letters["*"+more[0][:1]]++
				if reply = strings.Fields(more[0]); more[0][0] == 'E' {
					reply = []string{reply[0][1:]}
				}
				more = more[1:]
			default:
				reply = []string{letter}
			}
			if want := plain(1, s); !slices.Equal(reply, want) {
				fail("request %d: the batch answers %v, the plain script %v", i, reply, want)
			}
			learn(s, reply)
		}
		for _, s := range again {
			got, want := plain(0, s), plain(1, s)
			if !slices.Equal(got, want) {
				fail("%+v: %v after the batch, %v without it", s, got, want)
			}
			learn(s, got)
		}
		for name := range names {
			state, err := compare.Run(ctx, c, []string{world(0, name), world(1, name)}).StringSlice()
			if err != nil && !strings.Contains(err.Error(), "WRONGTYPE") {
				t.Fatal(err)
			}
			if err == nil && state[0] != state[1] {
				fail("name %d\n%s\n\nwithout batches\n%s", name, state[0], state[1])
			}
		}
	}
	for _, letter := range []string{"G", "R", "N", "F", "*G", "*B", "*E"} {
		if letters[letter] < 20 {
			t.Errorf("%d answers are %s", letters[letter], letter)
		}
	}
	t.Log(letters)
}
