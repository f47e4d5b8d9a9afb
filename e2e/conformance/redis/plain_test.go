package redis

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"

	goredis "github.com/redis/go-redis/v9"
)

// observed makes a script use a clock, an expiry of keys and messages that the test controls. Two
// scripts then see the same time, and the test can compare their effects.
const observed = `
local server = redis
local clock = server.call('HMGET', 'clock', 's', 'us')
local function run(how, ...)
  local command, key, a = ...
  if command == 'TIME' then return clock end
  server.call('INCR', 'commands:' .. KEYS[1])
  local ms = clock[1] * 1000 + math.floor(clock[2] / 1000)
  if command == 'PTTL' then return server.call('GET', 'life:' .. key) - ms end
  if command == 'PEXPIRE' then
    if server.call('EXISTS', key) == 0 then return 0 end
    server.call('SET', 'life:' .. key, string.format('%.0f', ms + a))
    return 1
  end
  if command == 'DEL' then server.call('DEL', 'life:' .. key) end
  if command == 'PUBLISH' then return server.call('RPUSH', 'messages:' .. KEYS[1], key .. ' ' .. a) end
  return how(...)
end
local redis = {
  call = function(...) return run(server.call, ...) end,
  pcall = function(...) return run(server.pcall, ...) end,
  error_reply = server.error_reply,
}
`

// compared returns the state of two names: fields, counters, expiry and messages.
const compared = `
local answer = {}
for i, key in ipairs(KEYS) do
  local fields, all = server.call('HGETALL', key), {}
  for j = 1, #fields, 2 do all[#all + 1] = fields[j] .. '=' .. fields[j + 1] end
  table.sort(all)
  for _, other in ipairs({'counter:', 'life:'}) do all[#all + 1] = other .. (server.call('GET', other .. key) or 'none') end
  for _, m in ipairs(server.call('LRANGE', 'messages:' .. key, 0, -1)) do all[#all + 1] = m end
  answer[i] = table.concat(all, '\n')
  answer[i + 2] = server.call('GET', 'commands:' .. key) or '0'
  server.call('DEL', 'messages:' .. key, 'commands:' .. key)
end
return answer`

// TestPlainStepsDoWhatCommonDoes makes the same random steps on two names. For one of them the scripts
// never take the short path. Replies, states, tokens, expiry and messages are the same after each step.
func TestPlainStepsDoWhatCommonDoes(t *testing.T) {
	t.Parallel()
	r := start(t)
	ctx := t.Context()
	c := goredis.NewClient(&goredis.Options{Addr: r.Address()})
	defer func() { _ = c.Close() }()
	const near = "CONFIRM, CLOSE = 700000, 15000000, 20000, 2500000, "
	// With only 8 entries near the head, entries of 14 clients come near it during the test.
	plain, shared := strings.Replace(source(t, "plain"), near+"32\n", near+"8\n", 1), source(t, "common")
	if !strings.Contains(plain, near+"8\n") {
		t.Fatal("plain.lua has another number of entries near the head")
	}
	never := strings.Replace(plain, "local PLAIN = '^", "local PLAIN = '^never", 1)
	if never == plain {
		t.Fatal("plain.lua has no PLAIN any more")
	}
	scripts := map[string][2]*goredis.Script{}
	for _, name := range []string{"acquire", "release", "renew", "undo", "break"} {
		var pair [2]*goredis.Script
		for i, p := range []string{plain, never} {
			s := strings.Replace(source(t, name), "-- include plain\n", p, 1)
			pair[i] = goredis.NewScript(observed + strings.Replace(s, "-- include common\n", shared, 1))
		}
		scripts[name] = pair
	}
	compare := goredis.NewScript(observed + compared)
	names := [2]string{"a", "b"}
	clock := int64(1_800_000_000_000_000)
	history := []string{}
	fewer := map[string]int{}
	// both runs one step on both names.
	both := func(kind, script string, counter bool, args ...any) []string {
		t.Helper()
		history = append(history, fmt.Sprint(clock, " ", kind, " ", args))
		var replies [2]string
		for i, name := range names {
			keys := []string{name}
			if counter {
				keys = append(keys, "counter:"+name)
			}
			v, err := scripts[script][i].Run(ctx, c, keys, args...).Result()
			if err != nil && err != goredis.Nil {
				t.Fatalf("%s: %v\n%s", names[i], err, strings.Join(history[max(0, len(history)-20):], "\n"))
			}
			replies[i] = strings.Trim(fmt.Sprint(v), "[]")
		}
		state, err := compare.Run(ctx, c, names[:]).StringSlice()
		check(t, err)
		if replies[0] != replies[1] || state[0] != state[1] {
			t.Fatalf("after\n%s\nthe plain path returns %s\n%s\n\ncommon returns %s\n%s", strings.Join(history[max(0, len(history)-20):], "\n"), replies[0], state[0], replies[1], state[1])
		}
		a, _ := strconv.Atoi(state[2])
		b, _ := strconv.Atoi(state[3])
		if a < b {
			fewer[kind]++
		}
		return strings.Fields(replies[0])
	}
	// client sends one request after another.
	type client struct {
		id, seq, token, slot string
		limit                int
		ttl                  int64
	}
	random := rand.New(rand.NewPCG(16, 2))
	var all [14]*client
	ids := 0
	fresh := func(i int) *client {
		ids++
		limit := 1
		if random.IntN(150) == 0 {
			limit = []int{2, 1<<31 - 1}[random.IntN(2)]
		}
		all[i] = &client{id: fmt.Sprint("id", ids), limit: limit, ttl: []int64{30e6, 30e6, 30e6, 2e6, 1e6 + 1, 90e6}[random.IntN(6)]}
		return all[i]
	}
	for i := range all {
		fresh(i)
	}
	seen := func() string {
		if random.IntN(50) == 0 {
			return fmt.Sprint(clock + int64(random.IntN(3000)) - 1000)
		}
		return "0"
	}
	counted := func() bool { return random.IntN(40) > 0 }
	tags := 0
	tokens := func(args []any) []any {
		if random.IntN(3) == 0 {
			args = append(args, fmt.Sprint(1+random.IntN(1000)))
		}
		return args
	}
	// next returns the client with the first queue entry, or -1.
	next := func() int {
		first, number := -1, 0
		for i, k := range all {
			if seq, _ := strconv.Atoi(k.seq); k.token == "" && seq > 0 && (first < 0 || seq < number) {
				first, number = i, seq
			}
		}
		return first
	}
	do := func(args ...any) {
		if err := c.Do(ctx, args...).Err(); err != nil && err != goredis.Nil {
			t.Fatal(err)
		}
	}
	for n := range 9000 {
		calm := n%600 >= 400 // few clients request
		step := int64(random.IntN(300))
		switch random.IntN(100) {
		case 0, 1, 2:
			step = int64(random.IntN(3e6)) // leases of promoted clients and queue entries expire
		case 3:
			step = -int64(random.IntN(5000))
		}
		clock += step
		do("HSET", "clock", "s", clock/1e6, "us", clock%1e6)
		for _, name := range names {
			if life, err := c.Get(ctx, "life:"+name).Int64(); err == nil && life < clock/1000 {
				do("DEL", name, "life:"+name)
			}
			switch step % 97 {
			case 1: // the server has lost its counter of tokens
				do("DEL", "counter:"+name)
			case 2: // another name of the bucket was granted
				do("SET", "counter:"+name, clock+step%5-2)
			}
		}
		i := random.IntN(len(all))
		if random.IntN(2) == 0 { // in half of the steps the holder or the first waiter acts
			i = slices.IndexFunc(all[:], func(k *client) bool { return k.token != "" })
			if i < 0 {
				i = max(0, next())
			}
		}
		k := all[i]
		requested := func(i int, k *client) string {
			return fmt.Sprintf("%d p:channel%d 77&host&%d& %s", k.limit, i%5, i%3, k.id)
		}
		request := requested(i, k)
		late := fmt.Sprint(clock + 1e7)
		tagged := func(args []any) []any {
			if len(args) == 8 && random.IntN(2) == 0 {
				tags++
				args = append(args, "1", fmt.Sprint("TAG-", tags))
			}
			return args
		}
		send := func(kind, seq, again string, counter bool) {
			args := tokens([]any{request, fmt.Sprint(k.ttl), fmt.Sprint(k.ttl/1000 + 2), late, seen(), "1", seq, again})
			switch v := both(kind, "acquire", counter, tagged(args)...); v[0] {
			case "G":
				k.token, k.slot = v[2], v[3]
				if kind == "refresh" {
					k.seq = "0"
				}
			case "Q":
				k.seq = v[2]
			case "X":
				k.seq = ""
			case "V":
				fresh(i)
			}
		}
		mark := fmt.Sprint(" ", k.id, " ", k.token, " ")
		counter := counted()
		_, state, _ := strings.Cut(c.HGet(ctx, names[0], "m").Val(), " ")
		alone := strings.HasPrefix(state, "1 0 0 0 ") // no entry waits behind the holder
		switch what := random.IntN(40); {
		case k.token != "" && what == 0:
			both("renewal", "renew", false, mark, k.slot, fmt.Sprint(k.ttl))
		case k.token != "" && what == 4:
			both("confirmation", "renew", false, mark, k.slot, fmt.Sprint(k.ttl), "1")
		case k.token != "" && what == 1:
			both("break", "break", false, k.token)
		case k.token != "" && what == 2:
			both("kept release", "release", false, mark, k.slot, fmt.Sprint(random.IntN(5000)), "0")
			fresh(i)
		case k.token != "" && what == 3:
			both("release and withdrawal", "release", false, mark, k.slot, "0", fmt.Sprint(clock+int64(random.IntN(2000))))
			fresh(i)
		case k.token != "" && (!calm && what < 18 || alone && what < 38):
			// The swap requests the name for a client without a queue entry, if there is one.
			n := slices.IndexFunc(all[:], func(o *client) bool { return o.token == "" && (o.seq == "" || o.seq == "0") })
			if n < 0 {
				break
			}
			o, kind := all[n], "swap"
			args := tagged(tokens([]any{requested(n, o), fmt.Sprint(o.ttl), fmt.Sprint(o.ttl/1000 + 2), late, seen(), "1", "0", "0"}))
			for len(args) < 10 {
				args = append(args, []any{"1", ""}[len(args)-8])
			}
			until := "0"
			if random.IntN(20) == 0 {
				until = fmt.Sprint(clock + int64(random.IntN(2000)))
			}
			if !alone {
				kind = "swap before a waiter"
			}
			switch v := both(kind, "acquire", counter, append(args, mark, k.slot, until)...); strings.ToUpper(v[0]) {
			case "G":
				o.token, o.slot = v[2], v[3]
				fresh(i)
			case "Q":
				o.seq = v[2]
				fresh(i)
			case "V":
				fresh(n)
			}
		case k.token != "" && what < 22 && k.slot == "0":
			both("release", "release", counted(), mark)
			fresh(i)
		case k.token != "":
			both("release", "release", counted(), mark, k.slot, "0", "0")
			fresh(i)
		case k.seq != "" && what == 0:
			both("rollback", "undo", false, k.id, "0")
			fresh(i)
		case k.seq != "" && what == 1:
			both("rollback and withdrawal", "undo", false, k.id, fmt.Sprint(clock+int64(random.IntN(2000))))
			fresh(i)
		case k.seq != "" && what == 2:
			send("repeated request", "0", "1", counter)
		case k.seq != "" && what < 36:
			send("refresh", k.seq, "0", counter)
		case k.seq != "":
			// The client is dead, and its entry remains.
			if what == 39 {
				fresh(i)
			}
		case what == 0:
			both("try", "acquire", counter, request, fmt.Sprint(k.ttl), fmt.Sprint(k.ttl/1000+2), late, seen())
			fresh(i)
		case calm && slices.ContainsFunc(all[:], func(o *client) bool { return o.token != "" }):
		default:
			send("queue entry", "0", "0", counter)
		}
	}
	for _, kind := range []string{"queue entry", "refresh", "release", "swap", "swap before a waiter"} {
		if fewer[kind] < 20 {
			t.Errorf("%d steps of kind %q took the plain path", fewer[kind], kind)
		}
	}
	t.Log(fewer)
}
