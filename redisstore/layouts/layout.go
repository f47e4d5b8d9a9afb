package layouts

import (
	"crypto/rand"
	"crypto/sha256"
	"embed"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/redisstore/internal/server"
)

// Layout is the format of the locks. All clients of a name must use the same layout. A name whose keys would be
// in several hash slots of a Cluster is refused with an error of code CodeUnsupported.
type Layout string

// The layouts. docs/redis-layouts.md lists the guarantees of each.
const (
	// Plain is one string per name, as in redsync, bsm/redislock, redis-py and most locks without
	// a library. It has exclusive locks. Waiters poll; a release by holdfast wakes the waiters of
	// holdfast.
	Plain Layout = "plain"
	// Redisson is Redisson's RLock. It has exclusive locks.
	Redisson Layout = "redisson"
	// RedissonFair is Redisson's fair lock, whose waiters are served in order.
	RedissonFair Layout = "redisson-fair"
	// RedissonFenced is Redisson's RFencedLock. Redisson's token is the fencing token of the lock.
	RedissonFenced Layout = "redisson-fenced"
	// RedissonSpin is Redisson's spin lock, whose waiters poll.
	RedissonSpin Layout = "redisson-spin"
	// RedissonReadWrite is Redisson's RReadWriteLock: exclusive and shared locks.
	RedissonReadWrite Layout = "redisson-rw"
	// RedissonSemaphore is Redisson's RSemaphore. The permits of Java clients have no leases;
	// the permits of holdfast have leases.
	RedissonSemaphore Layout = "redisson-semaphore"
	// RedissonPermits is Redisson's RPermitExpirableSemaphore.
	RedissonPermits Layout = "redisson-permits"
)

// rules describe one layout.
type rules struct {
	// scripts are the names of its files in scripts.
	scripts []string
	// channel is the prefix of the channel on which a release notifies waiters.
	channel string
	// poll is the longest interval at which waiters repeat a request, as the other clients do, if their
	// releases do not notify. It is 0 if they do.
	poll time.Duration
	// yield is how long the waiters of this process let other clients go first after a turn, 0 if the
	// layout has a queue. See turns.
	yield time.Duration
	// keys returns the keys that a name has beside its own key. It may be nil.
	keys func(name string) []string
	// kind is the type of a held name's key, for SCAN.
	kind string
	// limits reports whether a limit can be granted.
	limits func(limit int) bool
	// amend changes the guarantees after declare. It may be nil.
	amend func(*driver.Guarantees)
	// owner returns the owner of a request. It may be nil: then the owner is Store.thread.
	owner func(s *store, id string, limit int) string
}

func exclusiveOnly(limit int) bool { return limit == driver.Exclusive }

func anyPermits(limit int) bool { return limit <= driver.MaxLimit }

// freeChannel is the prefix of the channel on which holdfast notifies its own waiters, in the layouts
// whose other clients do not.
const freeChannel = "holdfast:free"

// The other clients that poll do so at most this long after their last request, with their defaults:
// redsync 50 to 250 ms, redis-py and the examples of redislock 100 ms, Redisson's spin lock 1 to 128 ms.
const (
	plainPoll = 100 * time.Millisecond
	spinPoll  = 128 * time.Millisecond
	pollYield = 250 * time.Millisecond
)

// The names that Redisson uses.
const (
	lockChannel   = "redisson_lock__channel"
	permitChannel = "redisson_sc"
	writerSuffix  = ":write" // of the owner of a writer
)

var layouts = map[Layout]*rules{
	Plain: {
		scripts: []string{"plain"}, channel: freeChannel, kind: "string", limits: exclusiveOnly, amend: amendPlain,
		poll: plainPoll, yield: pollYield,
		owner: func(_ *store, id string, _ int) string { return id },
	},
	Redisson: {
		scripts: []string{"lock"}, channel: lockChannel, kind: "hash", limits: exclusiveOnly,
		yield: pushYield,
	},
	RedissonSpin: {
		scripts: []string{"lock"}, channel: freeChannel, kind: "hash", limits: exclusiveOnly, amend: amendSpin,
		poll: spinPoll, yield: pollYield,
	},
	RedissonFenced: {
		scripts: []string{"lock", "fenced"}, channel: lockChannel, kind: "hash", limits: exclusiveOnly, amend: amendFenced,
		yield: pushYield,
		keys:  func(n string) []string { return []string{prefixed("redisson_lock_token", n)} },
	},
	RedissonFair: {
		scripts: []string{"lock", "fair"}, channel: lockChannel, kind: "hash", limits: exclusiveOnly, amend: amendFair,
		keys: func(n string) []string {
			return []string{prefixed("redisson_lock_queue", n), prefixed("redisson_lock_timeout", n)}
		},
	},
	RedissonReadWrite: {
		scripts: []string{"rw"}, channel: "redisson_rwlock", kind: "hash", amend: amendReadWrite,
		yield:  pushYield,
		limits: func(limit int) bool { return limit == driver.Exclusive || limit == driver.Unlimited },
		owner: func(s *store, id string, limit int) string {
			if limit == driver.Exclusive {
				return s.thread(id) + writerSuffix
			}
			return s.thread(id)
		},
	},
	RedissonSemaphore: {
		scripts: []string{"semaphore"}, channel: permitChannel, kind: "string", limits: anyPermits, amend: amendSemaphore,
		yield: pushYield,
	},
	RedissonPermits: {
		scripts: []string{"permits"}, channel: permitChannel, kind: "string", limits: anyPermits, amend: amendPermits,
		yield: pushYield,
		keys:  func(n string) []string { return []string{suffixed(n, "timeout")} },
		owner: func(s *store, id string, _ int) string {
			sum := sha256.Sum256([]byte(s.client + id))
			return string(sum[:16])
		},
	},
}

// All returns the layouts, in the order of their names.
func All() []Layout { return slices.Sorted(maps.Keys(layouts)) }

func allNames() string {
	var all []string
	for _, l := range All() {
		all = append(all, string(l))
	}
	return strings.Join(all, ", ")
}

// prefixed and suffixed return the keys and channels beside a name's key, as Redisson names them.
// Redisson checks only for an opening brace, so they may be in another hash slot: see checkName.
func prefixed(prefix, name string) string {
	if strings.Contains(name, "{") {
		return prefix + ":" + name
	}
	return prefix + ":{" + name + "}"
}

func suffixed(name, suffix string) string { return stemOf(name) + ":" + suffix }

func stemOf(name string) string {
	if strings.Contains(name, "{") {
		return name
	}
	return "{" + name + "}"
}

// besidePrefix is the prefix of the side keys: holdfast's own data beside the key of a name.
const besidePrefix = "holdfast:beside:"

// besideKey returns the side key of a name's key. A key with a brace has an equals sign in place of
// the braces, so that a and {a} have different side keys.
func besideKey(key string) string {
	if strings.Contains(key, "{") {
		return besidePrefix + "=" + key
	}
	return besidePrefix + "{" + key + "}"
}

// keyBeside returns the name's key of a side key.
func keyBeside(side string) string {
	side = strings.TrimPrefix(side, besidePrefix)
	if key, ok := strings.CutPrefix(side, "="); ok {
		return key
	}
	return strings.TrimSuffix(strings.TrimPrefix(side, "{"), "}")
}

// checkName returns an error for a name that the layout does not support.
func (s *store) checkName(name string) error {
	key := s.key(name)
	// The keys beside the name's key start with its stem, or have it after a prefix.
	if s.srv.Client.Mode() == server.Cluster && (server.HashTag(key) != server.HashTag(stemOf(key)+":") || server.HashTag(key) != server.HashTag("x:"+stemOf(key))) {
		return driver.Errorf(driver.CodeUnsupported, "redisstore: name %q: the layout %s would put its keys into different hash slots of the Cluster: give a name without braces, or with one whole {tag}", name, s.layout)
	}
	if inner, ok := strings.CutPrefix(key, "{"); ok && s.rules.keys != nil && strings.HasSuffix(inner, "}") && !strings.Contains(inner, "{") {
		return driver.Errorf(driver.CodeUnsupported, "redisstore: name %q: in the layout %s it has keys in common with the name %q", name, s.layout, strings.TrimSuffix(inner, "}"))
	}
	return nil
}

//go:embed scripts
var scripts embed.FS

// verbs are the scripts of one layout. take is the script break.
type verbs struct{ acquire, renew, check, release, undo, take, inspect *server.Script }

func loadVerbs(l Layout, r *rules) *verbs {
	read := func(name string) string {
		text, err := scripts.ReadFile("scripts/" + name + ".lua")
		if err != nil {
			panic(err)
		}
		return string(text)
	}
	base := read("common")
	for _, name := range r.scripts {
		base += read(name)
	}
	script := func(verb string) *server.Script { return server.NewScript(string(l)+" "+verb, base+read(verb)) }
	return &verbs{script("acquire"), script("renew"), script("check"), script("release"), script("undo"), script("break"), script("inspect")}
}

// newUUID returns the ID of a client, in the form of Redisson's.
func newUUID() string {
	var b [16]byte
	_, _ = rand.Read(b[:])
	b[6], b[8] = b[6]&0x0f|0x40, b[8]&0x3f|0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:])
}

// thread returns the owner of a request: the client's UUID and a number. In Redisson, the number is
// that of the thread. Each request has another number, so no two requests share a lock.
func (s *store) thread(id string) string {
	sum := sha256.Sum256([]byte(id))
	return s.client + ":" + strconv.FormatUint(binary.BigEndian.Uint64(sum[:])>>1, 10)
}

// owner returns the owner of a request in the form of the layout.
func (s *store) owner(id string, limit int) string {
	if s.rules.owner != nil {
		return s.rules.owner(s, id, limit)
	}
	return s.thread(id)
}

// shown returns an owner as Inspect returns it.
func (s *store) shown(own string) string {
	if s.layout == RedissonPermits {
		return hex.EncodeToString([]byte(own))
	}
	return own
}

// key returns the key of a name. Other clients have to use the namespace as a prefix, too.
func (s *store) key(name string) string {
	if s.srv.Config.Namespace == "" {
		return name
	}
	return s.srv.Config.Namespace + "::" + name
}
