package redis

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/fence"
	"github.com/holdfast-go/holdfast/internal/servers"
	"github.com/holdfast-go/holdfast/redisstore"
	"github.com/holdfast-go/holdfast/redisstore/layouts"
)

// corrupt replaces the state of a held name by one that no script writes.
func corrupt(r *servers.Redis) func(t testing.TB, namespace, name string) func() {
	return func(t testing.TB, namespace, name string) func() {
		key := redisstore.Key(namespace, name)
		do(t, r, "HSET", key, "m", "9 9 9")
		return func() { do(t, r, "DEL", key) }
	}
}

// TestRecordOfAnotherProgramIsRefused: each call for a name whose key another program has written
// returns CodeRefused and names the key. It changes nothing.
func TestRecordOfAnotherProgramIsRefused(t *testing.T) {
	r := start(t)
	defer time.AfterFunc(testTimeout, r.Kill).Stop() // a server in a loop cannot be stopped otherwise
	s := open(t, "redis://"+r.Address())
	ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
	defer cancel()
	for i, write := range [][]string{
		{"SET", "KEY", "a text"},
		{"RPUSH", "KEY", "a list"},
		{"HSET", "KEY", "field", "a hash"},
		{"HSET", "KEY", "s0", "no grant"},
		{"HSET", "KEY", "s0", "", "m", "no state"},
		{"HSET", "KEY", "s0", "", "m", "0 0 0 1 9007199254740993 5 0 1 0 0 0"},
		{"HSET", "KEY", "s0", "", "m", "0 4 0 0 0 5 0 1 0 0 0"},
		{"HSET", "KEY", "s0", "", "m", "0 0 0 0 0 5 0 1 0 0 0 1:1000000000"},
		{"HSET", "KEY", "s0", "", "m", "0 0 0 0 0 5 0 1 0 0 0", "s3", "2 - - id 5 1 9000000000000000+1"},
		{"HSET", "KEY", "s0", "1 - - id 5 1 1+9000000000000000", "m", "0 0 0 0 0 5 0 1 0 0 0"},
	} {
		name := fmt.Sprint("foreign", i)
		g := must(t, s, request(name, driver.Exclusive, long))
		key := redisstore.Key("", name)
		do(t, r, "DEL", key)
		args := slices.Clone(write)
		args[1] = key
		do(t, r, args...)
		before := dump(t, r, key)
		hidden := strings.HasPrefix(write[len(write)-2], "s3") // only an exclusive request excludes it
		_, first := s.Acquire(ctx, request(name, driver.Exclusive, long))
		calls := map[string]error{"Acquire": first}
		if !hidden {
			waits := request(name, 3, long)
			waits.Wait = true
			_, calls["a waiting Acquire"] = s.Acquire(ctx, waits)
			_, calls["Inspect"] = s.Inspect(ctx, name)
			calls["Undo"], calls["Break"] = s.Undo(ctx, request(name, driver.Exclusive, long)), s.Break(ctx, name, 5)
		}
		for what, err := range calls {
			if err == nil || s.Classify(err) != driver.CodeRefused || !strings.Contains(err.Error(), key) {
				t.Errorf("%v: %s: %v", write, what, err)
			}
		}
		if after := dump(t, r, key); after != before {
			t.Errorf("%v: the key has changed from\n%s\nto\n%s", write, before, after)
		}
		err := s.Release(ctx, g, 0)
		if err != nil && s.Classify(err) != driver.CodeNotHeld && s.Classify(err) != driver.CodeRefused {
			t.Errorf("%v: Release: %v", write, err)
		}
		do(t, r, "DEL", key)
	}
}

// dump returns a key's type, expiry and content.
func dump(t testing.TB, r *servers.Redis, key string) string {
	t.Helper()
	kind := do(t, r, "TYPE", key)
	text := fmt.Sprint(kind, do(t, r, "PEXPIRETIME", key))
	switch kind {
	case "hash":
		all, _ := do(t, r, "HGETALL", key).([]any)
		var fields []string
		for i := 0; i+1 < len(all); i += 2 {
			fields = append(fields, fmt.Sprintf("%q=%q", all[i], all[i+1]))
		}
		slices.Sort(fields)
		return text + strings.Join(fields, "\n")
	case "string":
		return text + fmt.Sprint(do(t, r, "GET", key))
	}
	return text
}

// TestFarEndOfQueueCostsNothing: a state has a queue whose last number is far away. No call loops over
// the numbers, and the entry at the end gets its grant.
func TestFarEndOfQueueCostsNothing(t *testing.T) {
	r := start(t)
	s, other := open(t, "redis://"+r.Address()), open(t, "redis://"+r.Address())
	defer time.AfterFunc(testTimeout, r.Kill).Stop() // as above
	key := redisstore.Key("", "far")
	do(t, r, "HSET", key, "s0", "", "m", "0 0 0 1 900000000000000 5 0 1 0 0 0")
	before := commands(t, r)
	g := must(t, s, request("far", driver.Exclusive, long))
	w := queue(t, other, request("far", driver.Exclusive, long))
	release(t, s, g)
	release(t, other, w.Granted())
	if n := commands(t, r) - before; n > 1000 {
		t.Errorf("%d commands", n)
	}

	// The queue has an entry behind a gap that a first entry has left.
	g = must(t, s, request("far", driver.Exclusive, long))
	w = queue(t, other, request("far", driver.Exclusive, long))
	m := strings.Split(do(t, r, "HGET", key, "m").(string), " ")
	entry := do(t, r, "HGET", key, "q"+m[4]).(string)
	id, _, _ := strings.Cut(entry, " ")
	m[3], m[4] = "1", "900000000000000"
	do(t, r, "HDEL", key, "q1")
	do(t, r, "HSET", key, "q"+m[4], entry, "i"+id, m[4], "m", strings.Join(m, " "))
	before = commands(t, r)
	release(t, s, g)
	release(t, other, w.Granted())
	if n := commands(t, r) - before; n > 1000 {
		t.Errorf("%d commands", n)
	}
}

// commands returns the number of commands that the server has executed, those of scripts included.
func commands(t testing.TB, r *servers.Redis) int {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
	defer cancel()
	info, err := r.Info(ctx, "commandstats")
	check(t, err)
	n := 0
	for _, stats := range info {
		calls, _, _ := strings.Cut(strings.TrimPrefix(stats, "calls="), ",")
		c, _ := strconv.Atoi(calls)
		n += c
	}
	return n
}

// values are what a random corruption writes.
var values = []string{
	"", "0", "-", "-1", "-0", "=0", "=9", "5", "1e9", "inf", "nan", "a\x00b", "\xff",
	"9007199254740991", "9007199254740992", "99999999999999999999999999",
	strings.Repeat("1", 400), strings.Repeat("1 ", 300),
	"0 0 0 0 0 0 0 1 0 0 0", "1 0 0 1 900000000000 0 0 1 0 0 0 1:1",
	"1 p:c o id0 5 1 1800000000000000+9000000000", "2147483647 p:c o id1 5 1 1800000000000000+9000000000",
	"1 p:c o id2 5 1 1800000000000000+1", "id0 1 1000000 1900000000000000 1 p:c o",
	"id1 3 1000000 1900000000000000 1 p:c,tag o", "id2 1 1 1 1 p:c o", "id0", "id1",
}

// TestScriptsWithstandRandomRecords runs every script on hashes that random calls have made and that
// random writes have changed. Each script executes a number of commands that the length of the hash
// limits. If it returns an error, that is the error of a broken record, and the hash is unchanged. It
// grants no exclusive lock beside another grant, and no lock beside an exclusive one.
func TestScriptsWithstandRandomRecords(t *testing.T) {
	r := start(t)
	ctx := t.Context()
	c := goredis.NewClient(&goredis.Options{Addr: r.Address()})
	defer func() { _ = c.Close() }()
	includes := strings.NewReplacer("-- include plain\n", source(t, "plain"), "-- include common\n", source(t, "common"))
	scripts := map[string]*goredis.Script{}
	for _, name := range []string{"acquire", "combined", "release", "renew", "undo", "break", "check", "inspect"} {
		scripts[name] = goredis.NewScript(fixedClock + includes.Replace(source(t, name)))
	}
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rnd := rand.New(rand.NewPCG(seed, 1))
	rounds := 4000
	if testing.Short() {
		rounds = 1000
	}
	refused, granted := 0, 0
	for range rounds {
		f := &fuzzed{t: t, r: r, c: c, rnd: rnd, scripts: scripts}
		do(t, r, "FLUSHDB")
		for range rnd.IntN(12) {
			f.step(ctx)
		}
		f.corrupt()
		for range 1 + rnd.IntN(4) {
			f.checked(ctx)
		}
		refused, granted = refused+f.refused, granted+f.granted
	}
	if refused < rounds/20 || granted < rounds/20 {
		t.Errorf("only %d calls were refused, and %d granted", refused, granted)
	}
}

// fixedClock makes a script use a clock that does not move.
const fixedClock = `
local server = redis
local redis = {
  call = function(...) if ... == 'TIME' then return {'1800000000', '500'} end return server.call(...) end,
  pcall = function(...) if ... == 'TIME' then return {'1800000000', '500'} end return server.pcall(...) end,
  error_reply = server.error_reply,
}
`

const fuzzedNow = 1800000000000500

// fuzzed is a hash that a test makes and changes.
type fuzzed struct {
	t       *testing.T
	r       *servers.Redis
	c       *goredis.Client
	rnd     *rand.Rand
	scripts map[string]*goredis.Script
	refused int
	granted int
}

func (f *fuzzed) pick(all ...string) string { return all[f.rnd.IntN(len(all))] }

func (f *fuzzed) fields() map[string]string {
	all, err := f.c.HGetAll(f.t.Context(), "n").Result()
	if err != nil {
		f.t.Fatal(err)
	}
	return all
}

// grant returns the ID, token and slot of a grant, or of one that does not exist.
func (f *fuzzed) grant() (id, token, slot string) {
	all := f.fields()
	for _, field := range slices.Sorted(maps.Keys(all)) {
		part := strings.Split(all[field], " ")
		slot, isSlot := strings.CutPrefix(field, "s")
		if _, err := strconv.Atoi(slot); err == nil && isSlot && len(part) == 7 && f.rnd.IntN(2) == 0 {
			if _, err := strconv.ParseUint(part[4], 10, 64); err == nil { // a client sends only numbers
				return part[3], part[4], slot
			}
		}
	}
	return f.pick("id0", "id1", "id2"), "5", f.pick("0", "1", "7")
}

// call returns a random call: its script, keys and arguments.
func (f *fuzzed) call() (script string, keys []string, args []any) {
	id, token, slot := f.grant()
	mark := " " + id + " " + token + " "
	seq := f.pick("0", "1", "2", "900000000000")
	late := "1800000005000000"
	script = f.pick("acquire", "acquire", "acquire", "release", "release", "renew", "undo", "break", "check", "inspect",
		"combined")
	switch script {
	case "acquire":
		id = f.pick("id0", "id1", "id2", "id3", "id4", "id5")
		args = []any{f.pick("1", "1", "3", "2147483647") + " p:c o " + id, "60000000", "60001", late, "0"}
		if f.rnd.IntN(3) > 0 {
			args = append(args, f.pick("0", "1"), f.pick("0", "0", seq), f.pick("0", "1"))
			if f.rnd.IntN(3) == 0 {
				args = append(args, "1", f.pick("", "tag-1"), mark, slot, f.pick("0", late))
			}
		}
		keys = []string{"n", "counter"}[:2-f.rnd.IntN(5)/4]
	case "release":
		args = []any{mark}
		if f.rnd.IntN(2) == 0 {
			args = append(args, slot, f.pick("0", "5000000"), f.pick("0", late))
		}
		keys = []string{"n", "counter"}
	case "renew":
		keys, args = []string{"n"}, []any{mark, slot, "60000000"}
		if f.rnd.IntN(2) == 0 {
			args = append(args, "1")
		}
	case "undo":
		keys, args = []string{"n"}, []any{id, f.pick("0", late)}
	case "break":
		keys, args = []string{"n"}, []any{token}
	case "check":
		keys, args = []string{"n"}, []any{mark, slot}
	case "inspect":
		keys = []string{"n"}
	case "combined":
		keys, args = []string{"n", "counter", "n"}, []any{late, "0", "+60000000 60001", "1 p:c o id9", mark}
	}
	return script, keys, args
}

func (f *fuzzed) step(ctx context.Context) {
	script, keys, args := f.call()
	if err := f.scripts[script].Run(ctx, f.c, keys, args...).Err(); err != nil && err != goredis.Nil {
		f.t.Fatalf("%s %q on a hash of the scripts: %v\n%v", script, args, err, f.fields())
	}
}

// corrupt changes the hash as a careless or hostile program would.
func (f *fuzzed) corrupt() {
	for range 1 + f.rnd.IntN(3) {
		all := f.fields()
		names := slices.Sorted(maps.Keys(all))
		field := f.pick("s0", "s1", "s7", "m", "q1", "q2", "r1", "x1", "iid0", "iid1", "vid0", "", "q007", "sx", "field")
		if len(names) > 0 && f.rnd.IntN(3) > 0 {
			field = names[f.rnd.IntN(len(names))]
		}
		value := f.pick(values...)
		switch part := strings.Split(all[field], " "); f.rnd.IntN(4) {
		case 0:
			do(f.t, f.r, "HDEL", "n", field)
			continue
		case 1:
			part[f.rnd.IntN(len(part))] = value
			value = strings.Join(part, " ")
		case 2:
			part[f.rnd.IntN(len(part))] = strconv.FormatUint(f.rnd.Uint64N(1<<f.rnd.UintN(64)), 10)
			value = strings.Join(part, " ")
		}
		do(f.t, f.r, "HSET", "n", field, value)
	}
	if f.rnd.IntN(10) == 0 {
		do(f.t, f.r, "SET", "counter", f.pick(values...))
	}
}

// live returns the limits of the grants in the hash that have not expired, by ID: those in slot 0 and in
// the other slots that the state has.
func live(all map[string]string) map[string]int {
	found := map[string]int{}
	slots := 1
	if m := strings.Split(all["m"], " "); len(m) > 1 {
		slots, _ = strconv.Atoi(m[1])
	}
	for field, value := range all {
		part := strings.Split(value, " ")
		slot, err := strconv.Atoi(strings.TrimPrefix(field, "s"))
		if err != nil || field[0] != 's' || slot > 0 && slot >= slots || len(part) != 7 {
			continue
		}
		limit, err := strconv.Atoi(part[0])
		at, ttl, _ := strings.Cut(part[6], "+")
		a, err1 := strconv.ParseFloat(at, 64)
		b, err2 := strconv.ParseFloat(ttl, 64)
		if err == nil && err1 == nil && err2 == nil && a+b > fuzzedNow && (limit != 1 || field == "s0") {
			found[part[3]] = limit
		}
	}
	return found
}

// refusal reports whether a script returns the error of a broken record, or of a broken counter.
func refusal(text string) bool {
	return strings.Contains(text, "holdfast: broken record 1: ") || strings.Contains(text, "tokens of this bucket")
}

// checked makes a random call on the changed hash, and checks its effect.
func (f *fuzzed) checked(ctx context.Context) {
	script, keys, args := f.call()
	all := f.fields()
	before, executed := dump(f.t, f.r, "n"), commands(f.t, f.r)
	short, cancel := context.WithTimeout(ctx, testTimeout)
	defer cancel()
	answer, err := f.scripts[script].Run(short, f.c, keys, args...).Result()
	report := func(what string) {
		f.t.Helper()
		f.t.Fatalf("%s: %s %q returns %v, %v\nbefore: %q\nafter:  %q", what, script, args, answer, err, all, f.fields())
	}
	if n := commands(f.t, f.r) - executed; n > 500+20*len(all) {
		report(fmt.Sprint(n, " commands"))
	}
	after := f.fields()
	text := fmt.Sprint(answer)
	if script == "combined" && refusal(text) {
		f.refused++
	}
	if err != nil && err != goredis.Nil {
		f.refused++
		if !refusal(err.Error()) {
			report("another error")
		}
		if dump(f.t, f.r, "n") != before {
			report("a refused call has written")
		}
		return
	}
	old, now := live(all), live(after)
	for who, l := range now {
		if _, stood := old[who]; stood {
			continue
		}
		f.granted++
		for other, theirs := range now {
			if other != who && (l == 1 || theirs == 1) {
				report(fmt.Sprintf("a grant of limit %d for %s beside one of limit %d for %s", l, who, theirs, other))
			}
		}
	}
}

// TestLayoutsWithstandRandomRecords: another program changes the keys of a lock in the layout of another
// client library. No call returns an error of unknown outcome, or executes more commands than the keys
// have entries. A lock is granted only while its key does not exist.
func TestLayoutsWithstandRandomRecords(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	for i, l := range []layouts.Layout{layouts.Plain, layouts.Redisson, layouts.RedissonFair,
		layouts.RedissonFenced, layouts.RedissonReadWrite, layouts.RedissonSemaphore, layouts.RedissonPermits} {
		t.Run(string(l), func(t *testing.T) {
			r := start(t)
			defer time.AfterFunc(testTimeout, r.Kill).Stop()
			rnd := rand.New(rand.NewPCG(seed, uint64(i)))
			s := openLayout(t, "redis://"+r.Address(), l)
			limit := driver.Exclusive
			if l == layouts.RedissonSemaphore || l == layouts.RedissonPermits {
				limit = 3
			}
			refused := 0
			for n := range 150 {
				name := fmt.Sprint("n", n)
				g := must(t, s, request(name, limit, long))
				if l == layouts.RedissonReadWrite {
					release(t, s, g)
					g = must(t, s, request(name, driver.Unlimited, long))
				}
				spoil(t, r, rnd)
				exists := do(t, r, "EXISTS", name) != int64(0)
				before := commands(t, r)
				next, err := s.Acquire(t.Context(), request(name, limit, long))
				if err == nil && exists && limit == driver.Exclusive {
					t.Errorf("a grant beside another value: %+v", next)
				}
				inspected, listed := error(nil), error(nil)
				_, inspected = s.Inspect(t.Context(), name)
				for _, err := range s.List(t.Context(), "") {
					listed = err
				}
				for what, err := range map[string]error{"Acquire": err, "Inspect": inspected, "List": listed,
					"Renew":   s.Renew(t.Context(), []driver.Grant{g})[0].Err,
					"Release": s.Release(t.Context(), g, 0), "Break": s.Break(t.Context(), name, 5)} {
					if err == nil {
						continue
					}
					switch s.Classify(err) {
					case driver.CodeRefused:
						refused++
					case driver.CodeBusy, driver.CodeNotHeld:
					default:
						t.Errorf("%s: %v", what, err)
					}
				}
				if n := commands(t, r) - before; n > 20000 {
					t.Errorf("%d commands", n)
				}
				do(t, r, "FLUSHDB")
			}
			if refused == 0 {
				t.Error("no call was refused")
			}
		})
	}
}

// spoil changes some of the server's keys.
func spoil(t *testing.T, r *servers.Redis, rnd *rand.Rand) {
	t.Helper()
	all, _ := do(t, r, "KEYS", "*").([]any)
	slices.SortFunc(all, func(a, b any) int { return strings.Compare(a.(string), b.(string)) })
	for range 1 + rnd.IntN(2) {
		key, value := all[rnd.IntN(len(all))].(string), values[rnd.IntN(len(values))]
		switch kind := do(t, r, "TYPE", key); {
		case rnd.IntN(6) == 0:
			do(t, r, "DEL", key)
			do(t, r, []string{"SET", "RPUSH", "SADD"}[rnd.IntN(3)], key, value)
		case kind == "hash":
			fields, _ := do(t, r, "HGETALL", key).([]any)
			do(t, r, "HSET", key, fields[2*rnd.IntN(len(fields)/2)].(string), value)
		case kind == "zset":
			do(t, r, "ZADD", key, []string{"inf", "-inf", "1e300", "1"}[rnd.IntN(4)], value)
		case kind == "list":
			do(t, r, "RPUSH", key, value)
		case kind == "string":
			do(t, r, "SET", key, value)
		}
	}
}

// random returns a function that picks one of several texts, with a seed that the test logs.
func random(t *testing.T) (rnd *rand.Rand, pick func(...string) string) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rnd = rand.New(rand.NewPCG(seed, 1))
	return rnd, func(all ...string) string { return all[rnd.IntN(len(all))] }
}

// TestValuesWithstandRandomRecords: another program writes to the key of a value. A value that no client of the store
// has written is refused, the error names its key, and the key is unchanged.
func TestValuesWithstandRandomRecords(t *testing.T) {
	r := common(t)
	s := open(t, "redis://"+r.Address())
	rnd, pick := random(t)
	const name = "random"
	const key = "holdfast:value::" + name
	for range 1500 {
		do(t, r, "DEL", key)
		have := map[string]string{}
		foreign := rnd.IntN(5) == 0
		if foreign {
			do(t, r, pick("SADD", "RPUSH", "SET"), key, pick(values...))
		} else {
			for range rnd.IntN(5) {
				field := pick("v", "v", "d", "d", "x")
				have[field] = pick(values...)
				do(t, r, "HSET", key, field, have[field])
			}
		}
		_, data := have["d"]
		written := !foreign && (len(have) == 0 || have["v"] != "" && data)
		before, version := dump(t, r, key), pick("", have["v"], pick(values...))
		got, at, getErr := s.Get(t.Context(), name)
		next, putErr := s.Put(t.Context(), name, []byte("data"), version)
		switch {
		case !written:
			for _, err := range []error{getErr, putErr} {
				if s.Classify(err) != driver.CodeRefused || !strings.Contains(err.Error(), strconv.Quote(key)) {
					t.Fatalf("%q: %v", before, err)
				}
			}
		case getErr != nil || string(got) != have["d"] || at != have["v"]:
			t.Fatalf("%q: %q at %q, %v", before, got, at, getErr)
		case version == have["v"]:
			if putErr != nil || do(t, r, "HGET", key, "v") != next || do(t, r, "HGET", key, "d") != "data" {
				t.Fatalf("%q: %v", before, putErr)
			}
			continue
		case putErr == nil:
			t.Fatalf("%q: written as %q", before, version)
		}
		if after := dump(t, r, key); after != before {
			t.Fatalf("%q is now %q: %v", before, after, putErr)
		}
	}
}

// TestGuardWithstandsRandomRecords: another program writes to the key of a guard's token. The guard refuses each token
// if there is none at the key, and otherwise passes those that are not smaller. A refused call changes nothing.
func TestGuardWithstandsRandomRecords(t *testing.T) {
	r := common(t)
	g := open(t, "redis://"+r.Address()).Guard()
	rnd, pick := random(t)
	const key, seen = "guarded", "holdfast:fence:{guarded}:guarded"
	for range 1500 {
		do(t, r, "DEL", key, seen)
		mark, kind := pick(append(values, "4", "5", "6", "44", "45", "46", "007", "+1", "1\n", "-9", "a", "!")...), rnd.IntN(8)
		switch kind {
		case 0:
		case 1:
			do(t, r, pick("SADD", "RPUSH"), seen, mark)
		default:
			do(t, r, "SET", seen, mark)
		}
		before := dump(t, r, seen)
		largest, broken := fence.Parse(mark)
		if kind == 0 {
			largest, broken = 0, nil
		}
		newest, newestErr := g.Newest(t.Context(), key)
		err := g.Write(t.Context(), key, 45, redisstore.Commands{{"SET", "written"}})
		switch {
		case kind == 1 || broken != nil:
			for _, err := range []error{err, newestErr} {
				if err == nil || kind != 1 && !errors.Is(err, fence.ErrCorrupt) {
					t.Fatalf("%q: %v", before, err)
				}
			}
		case newestErr != nil || newest != largest:
			t.Fatalf("%q: newest %d, %v", before, newest, newestErr)
		case largest <= 45:
			if err != nil || do(t, r, "GET", seen) != "45" || do(t, r, "GET", key) != "written" {
				t.Fatalf("%q: %v", before, err)
			}
			continue
		case !errors.Is(err, fence.ErrStale):
			t.Fatalf("%q: %v", before, err)
		}
		if after := dump(t, r, seen); after != before || do(t, r, "EXISTS", key) != int64(0) {
			t.Fatalf("%q is now %q: %v", before, after, err)
		}
	}
}
