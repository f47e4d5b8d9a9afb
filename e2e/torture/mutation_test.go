package torture

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"maps"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/internal/must"
	"github.com/holdfast-go/holdfast/internal/mutation"
)

var mistakes = flag.Bool("mistakes", false, "also build the command with mistakes in the stores, which takes minutes")

// serverMistakes are mistakes of other libraries, planted into the stores with servers.
var serverMistakes = []struct {
	name, local string
	plants      mutation.Plants
	rule        string // one of these rules convicts the mistake
}{
	{"a first row replaces the row of another client", "mariadb-optimistic", mutation.Plants{
		"mysql-first": mutation.With("version = holdfast_row.version",
			"version = VALUES(version), token = VALUES(token), expires = VALUES(expires), touched = VALUES(touched), state = VALUES(state)"),
	}, "exclusion|tokens|model|leftovers"},
	{"a first row replaces the row of another client", "postgres-optimistic", mutation.Plants{
		"postgres-first": mutation.With("ON CONFLICT DO NOTHING",
			"ON CONFLICT (name) DO UPDATE SET version = EXCLUDED.version, token = EXCLUDED.token, expires = EXCLUDED.expires, touched = EXCLUDED.touched, state = EXCLUDED.state"),
	}, "exclusion|tokens|model|leftovers"},
	{"a first grant replaces the grant of another client", "redis", mutation.Plants{
		"redis-first":    mutation.Is("if true then"),
		"redis-combined": mutation.Is("if true then"),
	}, "exclusion"},
	{"a renewal shortens the key's life below another grant's", "redis", mutation.Plants{
		"redis-life": mutation.Is(""),
	}, "exclusion|tokens|model|order|waiting"}, // the queue is deleted with the key
	{"requests are too late by the client's wall clock", "redis", mutation.Plants{
		"redis-clock": mutation.Is("return time.Now().UnixMicro()"),
	}, "leftovers|waiting"},
	{"the token is the number of the node", "zookeeper", mutation.Plants{
		"zookeeper-token": mutation.And("if n, ok := p.read(path[len(dir)+1:]); ok {\ntoken = uint64(n.seq) + 1\np.token = token\n}"),
	}, "tokens|register|model"},
	{"the end of the waiter before it is a waiter's turn", "zookeeper", mutation.Plants{
		"zookeeper-counted": mutation.With("all[:i]", "all[i-1:i]"),
	}, "exclusion|order|model"},
	{"a request in a batch gets the answer of another one", "redis", mutation.Plants{
		"redis-answers": mutation.With("[i]", "[len(b.requests)-1-i]"),
	}, "exclusion|tokens|model|leftovers"},
	{"a request that a batch has not decided is granted", "redis", mutation.Plants{
		"redis-undecided": mutation.Is("case r.letter == 'F' && sc == acquireScript:\nreturn server.Reply{Kind: 'G', Values: b.granted, Sent: b.began}, nil\ncase b.alone || r.letter == 'F':"),
	}, "exclusion|tokens|model"},
	{"the vote of a server that has voted for another request counts", "redlock", mutation.Plants{
		"redlock-given": mutation.With("v.state == voteGiven", "v.state == voteGiven || v.last == answerBusy"),
	}, "exclusion|model"},
	{"a quorum has one server too few", "redlock", mutation.Plants{
		"redlock-quorum": mutation.With("/2 + 1", "/2"),
	}, "exclusion|tokens|model"},
	{"a sweep removes the entries of live waiters", "redis", mutation.Plants{
		"redis-sweep": mutation.With("> now", "> now + 4950000"),
	}, "order|waiting|late"},
	{"a swap is granted before the waiters", "redis", swapFirst, "order"},
	{"a client may rely on its lock for longer than the gateway", "gateway", mutation.Plants{
		"console-valid": mutation.With("- time.Millisecond", "+ time.Second"),
	}, "exclusion"},
}

// swapFirst grants the request of a swap on Redis before all waiters.
var swapFirst = mutation.Plants{
	"redis-swap":    mutation.Is("elseif old then"),
	"redis-swapped": mutation.With("'0', '0'", "h, t"),
}

// keyWrittenAgain removes the key of a lock on Redis, and writes it again with the first waiter. If the server refuses the
// second step, the holder's grant is gone.
var keyWrittenAgain = mutation.Plants{
	"redis-tried": mutation.Is(""),
	"redis-contended": mutation.Is(`local left = st.lone and st.exists and call('PTTL', K)
if left then
for field, value in pairs(known) do
if value and pending[field] == nil then set[#set + 1] = field; set[#set + 1] = value end
end
call('DEL', K)
end
call('HSET', K, unpack(set))
if left then call('PEXPIRE', K, num(math.max(left, math.ceil((life - now) / 1000) + 1))) end`),
}

// notOnDisk acknowledges a commit on PostgreSQL before it is on the disk.
var notOnDisk = mutation.Plants{
	"postgres-flushed": mutation.Is(`const flushed = "true"`),
}

// suiteMistakes are mistakes that a test of a package in conformance convicts. In a check, the situation of most of them
// is too rare.
var suiteMistakes = []struct {
	name, suite, test string
	plants            mutation.Plants
}{
	{"a swap is granted before the waiters", "redis", "TestConformance/SwapQueuesLast", swapFirst},
	{"the first waiter's script removes the lock's key and writes it again", "redis", "TestRefusedCommandKeepsGrants/without_hset", keyWrittenAgain},
	{"the first waiter's script removes the key while its hash slot moves", "redis", "TestLocksWorkWhileSlotsMove/no_key_moved", keyWrittenAgain},
	{"a server that found the request late has voted for it", "redlock", "TestLateRequestIsNoVote", mutation.Plants{
		"redlock-given": mutation.With("v.state == voteGiven", "v.state == voteGiven || v.last == answerClock"),
	}},
	{"a vote that is given after the end of its ballot stays", "redlock", "TestVoteAfterTheEndOfItsBallotIsEnded", mutation.Plants{
		"redlock-late": mutation.With("b.ended", "b.ended && v.state != voteGiven"),
	}},
	{"a ping proves the connection, and a record is written in the lock's transaction", "mysql", "TestDeadlockWithTableLocksLeavesOneHolder/LOCK_T/pessimistic", mutation.Plants{
		"mysql-proof": mutation.With(`"ROLLBACK TO SAVEPOINT hf_lock"`, `"DO 1"`),
		"mysql-due":   mutation.Is("a.Record = true\nrecord := !a.Recorded"),
		"mysql-record": mutation.Is(`insert := brieflyMaria + fmt.Sprintf("INSERT INTO holdfast_session (held, conn, name, lockname, token, slot, taken, label) VALUES ('%s', %d, %s, %s, %d, %d, 0, '%s')"+
" ON DUPLICATE KEY UPDATE taken = holdfast_session.taken", grantLock(a.ID), s.ID.Conn, lit(a.Key), lit([]byte(lockname)), a.Token, a.Slot, a.Label.Encode(labelBytes))
if _, err := s.Run(ctx, insert); err != nil {`),
	}},
	{"a commit is acknowledged before it is on the disk", "postgres", "TestCrashForgetsNothingThatWasGranted/optimistic", notOnDisk},
	{"a reserved token belongs to two grants", "redis", "TestConformance/ReservedRangesRise", mutation.Plants{
		"redis-reserved": mutation.With("k + count - 1", "k"),
	}},
	{"a sweep removes the row of a live client", "postgres", "TestConformance/optimistic/OperatorsBesideLockers", mutation.Plants{
		"sql-sweep": mutation.With("WHERE ", "WHERE touched > 0 OR "),
	}},
	{"a guard accepts a token again after a larger one", "redis", "TestGuardSuite/PausedHolder", mutation.Plants{
		"redis-guard": mutation.Is("if redis.call('SADD', KEYS[2] .. ':', token) == 1 and seen and seen > token then return {seen} end"),
	}},
	{"a guard compares and writes in two steps", "redis", "TestGuardSuite/Overtaken", mutation.Plants{
		"redis-guard":      mutation.Is(""),
		"redis-guard-step": mutation.Is("newest, err := g.Newest(ctx, key)\nif err == nil && newest <= token {\nnewest, err = g.run(ctx, key, args)\n}"),
	}},
	{"a guard compares and writes in two steps", "etcd", "TestGuardPassesFencetest/Overtaken", mutation.Plants{
		"etcd-guard":      mutation.With("mark))", `"a"))`),
		"etcd-guard-step": mutation.And("if newest, err := g.Newest(ctx, resource); err == nil && newest > token {\nreturn nil, &fence.StaleError{Resource: resource, Token: token, Newest: newest}\n}"),
	}},
}

// formerDefects are defects that this library had. With each of them two clients held one
// lock.
var formerDefects = []struct {
	name   string
	locals []string
	plants mutation.Plants
	rule   string
	faults string // the faults to inject, if the one that shows the defect is rare among all
}{
	{"the first waiter's script removes the lock's key and writes it again", []string{"redis-cluster"}, keyWrittenAgain, "exclusion", "move-slot-held"},
	{"a demoted primary confirms and grants locks", []string{"mariadb-named", "mariadb-pessimistic"}, mutation.Plants{
		"mysql-demoted": mutation.Is("return false"),
	}, "exclusion", "promote-replica"},
	{"a commit is acknowledged before it is on the disk", []string{"postgres-optimistic"}, notOnDisk, "exclusion|tokens|leftovers|model|register|kept|ids|values", ""},
	{"the eviction policy is read once", []string{"redis"}, mutation.Plants{
		"redis-policy": mutation.With("if p", "if first && p"),
	}, "exclusion", "evict-keys"},
	{"a lease has no time for a replica's clock that is ahead", []string{"redis-replicas"}, mutation.Plants{
		"redis-lead": mutation.Is("ttl += 0 * lead"),
	}, "exclusion|model", ""},
}

// TestFormerDefectsAreConvicted plants each former defect in today's source. The check convicts the defect within
// three runs of two minutes.
func TestFormerDefectsAreConvicted(t *testing.T) {
	if !*mistakes {
		t.Skip("takes minutes: run it with -mistakes")
	}
	marks, err := mutation.Marks(serverStores...)
	must.Succeed(t, err)
	for _, d := range formerDefects {
		for _, local := range d.locals {
			t.Run(local+"/"+d.name, func(t *testing.T) {
				convict(t, marks, d.plants, local, d.rule, 2*time.Minute, 3, d.faults)
			})
		}
	}
}

var serverStores = []string{"redisstore", "etcdstore", "zkstore", "internal/sqlkit", "mysqlstore", "pgstore", "console"}

// TestMistakesBuild builds the command with all mistakes and former defects at once. So a change of the source
// that a plant does not fit is found without a check.
func TestMistakesBuild(t *testing.T) {
	marks, err := mutation.Marks(serverStores...)
	must.Succeed(t, err)
	all := mutation.Plants{}
	for _, d := range formerDefects {
		maps.Copy(all, d.plants)
	}
	for _, m := range serverMistakes {
		maps.Copy(all, m.plants)
	}
	for _, m := range suiteMistakes {
		maps.Copy(all, m.plants)
	}
	if _, err := mutation.Build(t.TempDir(), "../../cmd/holdfast", marks, all); err != nil {
		t.Error(err)
	}
	for mark, path := range marks {
		ours := slices.ContainsFunc(serverStores, func(s string) bool { return strings.Contains(filepath.ToSlash(path), "/"+s+"/") })
		// The marks of conformance/failover have mistakes there.
		if ours && all[mark] == nil && !strings.HasPrefix(mark, "failover-") {
			t.Errorf("%s: no mistake is planted at the mark %s", path, mark)
		}
	}
}

// TestServerMistakesAreConvicted plants each mistake in a copy of the library's source, and builds the
// command on it. Then it repeats a short check until one check convicts the mistake.
func TestServerMistakesAreConvicted(t *testing.T) {
	if !*mistakes {
		t.Skip("takes minutes: run it with -mistakes")
	}
	marks, err := mutation.Marks(serverStores...)
	must.Succeed(t, err)
	for _, m := range serverMistakes {
		t.Run(m.local+"/"+m.name, func(t *testing.T) {
			convict(t, marks, m.plants, m.local, m.rule, 20*time.Second, 18, "")
		})
	}
}

// TestSuiteConvictsMistakes plants each mistake in a copy of the library's source, and runs the tests of the
// store on it.
func TestSuiteConvictsMistakes(t *testing.T) {
	if !*mistakes {
		t.Skip("takes minutes: run it with -mistakes")
	}
	marks, err := mutation.Marks(serverStores...)
	must.Succeed(t, err)
	for _, m := range suiteMistakes {
		t.Run(m.suite+"/"+m.name, func(t *testing.T) {
			dir := filepath.Join("..", "conformance", m.suite)
			bin, err := mutation.BuildTest(t.TempDir(), "./"+dir, marks, m.plants)
			must.Succeed(t, err)
			cmd := exec.CommandContext(t.Context(), bin, "-test.run", "^"+strings.ReplaceAll(m.test, "/", "$/^")+"$")
			cmd.Dir = dir
			out, err := cmd.CombinedOutput()
			if err == nil || !bytes.Contains(out, []byte("--- FAIL: "+m.test+" ")) {
				t.Errorf("%s does not convict it: %v\n%s", m.test, err, out)
			}
			t.Logf("%s", out)
		})
	}
}

// convict builds the command with the plants. It runs at most the given number of checks of this
// duration, until one check convicts by a rule that matches. The checks inject the faults, all if there are none.
func convict(t *testing.T, marks map[string]string, plants mutation.Plants, local, rule string, duration time.Duration, most int, faults string) {
	t.Helper()
	bin, err := mutation.Build(t.TempDir(), "../../cmd/holdfast", marks, plants)
	must.Succeed(t, err)
	broken := regexp.MustCompile(`(?m)^(` + rule + `) +BROKEN.*$`)
	began := time.Now()
	for run := range most {
		seed := *seed + uint64(run)
		dir := filepath.Join(t.TempDir(), "run")
		args := []string{"check", "--local", local, "--duration", duration.String(), "--seed", fmt.Sprint(seed), "--dir", dir}
		if faults != "" {
			args = append(args, "--faults", faults)
		}
		out, err := exec.CommandContext(t.Context(), bin, args...).CombinedOutput()
		if err == nil {
			continue
		}
		var exit *exec.ExitError
		if !errors.As(err, &exit) || exit.ExitCode() != 1 || !bytes.Contains(out, []byte(" BROKEN")) {
			t.Fatalf("seed %d: %v\n%s", seed, err, out)
		}
		if !broken.Match(out) { // only another rule convicts
			t.Logf("seed %d:\n%s", seed, out)
			continue
		}
		t.Logf("convicted after %s, seed %d: %s", time.Since(began).Round(100*time.Millisecond), seed, broken.Find(out))
		return
	}
	t.Errorf("%d checks of %s convicted nothing", most, duration)
}
