//go:build linux || darwin

package lab

import (
	"slices"
	"time"

	"github.com/holdfast-go/holdfast/check"
)

// Mistake is a classic mistake of locks, with the experiment that proves it and the stories that
// show it.
type Mistake struct {
	// Name identifies the mistake. Title describes it in a few words.
	Name, Title string
	// Code shows the mistake in a program. What describes its effect. Instead describes the
	// behaviour of holdfast.
	Code, What, Instead string
	// Stories show the mistake on real servers. The caller must not change them.
	Stories []Story

	recipe recipe
	// rules are the rules of which at least one must convict the mistake. It is empty if the
	// mistake breaks no rule.
	rules []check.Rule
	// faults are the faults that expose the mistake. It is empty if the workers alone
	// expose it.
	faults []string
	// long is the percentage of locks that are held beyond the TTL. It is set if only such
	// a lock shows the mistake.
	long int
}

// Story is a mistake on a real server, with the steps that replay it.
type Story struct {
	// Name is a short word for the command line. Server is the title of the column between
	// the two clients, such as "Redis". Code is the wrong program.
	Name, Server, Code string
	// wrong and right make the steps of the wrong lock and of holdfast.
	wrong, right func(*stage)
}

// Mistakes returns all mistakes. The caller may change the returned slice.
func Mistakes() []Mistake { return slices.Clone(mistakes) }

// FindStory returns the story with the given name, and its mistake.
func FindStory(name string) (Mistake, Story, bool) {
	for _, m := range mistakes {
		for _, y := range m.Stories {
			if y.Name == name {
				return m, y, true
			}
		}
	}
	return Mistake{}, Story{}, false
}

var mistakes = []Mistake{
	{
		Name: "delete-anyones", Title: "a release that does not compare the owner",
		Code:    `DEL lock`,
		What:    "A holder is slow, and its lease expires. It then releases the lock of the next holder, and a third client gets the lock beside that holder.",
		Instead: "Every release compares the grant's own ID or token in the same atomic step.",
		Stories: []Story{{
			Name: "late-delete", Server: "Redis", Code: "SET lock A NX PX 1000 ... DEL lock",
			wrong: lateRelease(byHand(setNX, del)),
			right: lateRelease(right),
		}},
		recipe: recipe{deleteAnyones: true}, rules: []check.Rule{check.RuleExclusion}, faults: []string{"break", "delay"}, long: 20,
	},
	{
		Name: "renew-anyones", Title: "a renewal that does not compare the owner",
		Code:    `every 10 s: EXPIRE lock 30`,
		What:    "A holder has lost the lock. It renews the lock of the next holder, takes the answer as its own, and continues to work.",
		Instead: "A renewal proves ownership and never revives an ended grant. A lost grant ends the holder's context.",
		recipe:  recipe{renewAnyones: true}, rules: []check.Rule{check.RuleExclusion}, faults: []string{"break"}, long: 20,
	},
	{
		Name: "never-expires", Title: "a lock without an expiry",
		Code:    `SETNX lock me        (or EXPIRE as a second command, which a crash prevents)`,
		What:    "A holder dies, and the lock remains forever.",
		Instead: "Every grant has a lease, or ends with its holder's connection or process, from the first step on.",
		Stories: []Story{{
			Name: "setnx-forever", Server: "Redis", Code: "SETNX lock A",
			wrong: crash(byHand(setnx, del), "crashes"),
			right: crash(right, "crashes"),
		}, {
			Name: "expire-too-late", Server: "Redis", Code: "SETNX lock A; EXPIRE lock 1",
			wrong: crash(byHand(setnx, del), "crashes before EXPIRE"),
			right: crash(right, "crashes"),
		}},
		recipe: recipe{neverExpires: true}, rules: []check.Rule{check.RuleWaiting, check.RuleLeftovers, check.RuleLate}, faults: []string{"vanish"},
	},
	{
		Name: "check-then-act", Title: "a check and a write in two steps",
		Code:    `if GET lock is empty: SET lock me`,
		What:    "Two clients read that the lock is free, and both take it. So both change what they read, and one change is lost.",
		Instead: "The store decides and writes in one atomic step.",
		Stories: []Story{{
			Name: "lost-update", Server: "PostgreSQL", Code: "SELECT stock; UPDATE item SET stock = what I computed",
			wrong: loseUpdate,
			right: loseUpdateRight,
		}},
		recipe: recipe{checkThenAct: true}, rules: []check.Rule{check.RuleExclusion},
	},
	{
		Name: "client-clock", Title: "the clients' clocks decide when a lock expires",
		Code:    `SETNX lock (my time + 30 s); if the stored time is past by my clock: GETSET`,
		What:    "A machine whose clock is ahead takes a lock that its holder still relies on.",
		Instead: "The store's own clock ends a lease, and a holder measures its validity by its monotonic clock, from before its request.",
		Stories: []Story{{
			Name: "getset-clocks", Server: "Redis", Code: "SETNX lock END; GET lock; if END is past: GETSET lock END",
			wrong: race(byHand(getset, del), "clock shows 200, A's is 100", ""),
			right: race(holdfastOn(right.on, long), "clock shows 200, A's is 100", "B finds the lock held, whatever its clock says."),
		}},
		recipe: recipe{clientClock: true}, rules: []check.Rule{check.RuleExclusion}, faults: []string{"cut"}, long: 20,
	},
	{
		Name: "clock-token", Title: "a fencing token from the client's clock",
		Code:    `token = time.Now().UnixMilli()`,
		What:    "A later holder with a slower clock has a smaller token, or two holders have the same. The resource then refuses the right holder, or accepts both.",
		Instead: "Tokens come from the store, in the same step as the grant, and always rise.",
		recipe:  recipe{clockToken: true}, rules: []check.Rule{check.RuleTokens, check.RuleRegister},
	},
	{
		Name: "validity-from-answer", Title: "a validity that runs from the answer",
		Code:    `ok = SET lock me NX PX 30000; deadline = now + 30 s`,
		What:    "The server counts the TTL from the arrival of the request. After a slow answer the holder relies on a lock that another client already has.",
		Instead: "The validity runs from before the request was sent, minus a margin.",
		recipe:  recipe{validityFromAnswer: true}, rules: []check.Rule{check.RuleExclusion}, faults: []string{faultSlow}, long: 20,
	},
	{
		Name: "lost-is-no", Title: "a lost answer taken for a refusal",
		Code:    `if err := acquire(ctx); err != nil { return err }      (and a session keeps it alive)`,
		What:    "The server applied the request, and its answer was lost. No client relies on the lock, the session renews it, and all clients wait.",
		Instead: "A lost answer is an unknown outcome. The client undoes the request in the background until the store confirms that no grant remains.",
		recipe:  recipe{lostIsNo: true}, rules: []check.Rule{check.RuleWaiting, check.RuleLeftovers, check.RuleLate}, faults: []string{"drop-answers"},
	},
	{
		Name: "forgetful-failover", Title: "a failover that loses the lock, without notice to its holder",
		Code:    `SET lock me NX on a primary; its replica takes over without the key`,
		What:    "The new primary, or a server that restarts empty, grants the lock again while its holder relies on it.",
		Instead: "A store's guarantees state what a failover can lose. A grant can wait for replicas. At the resource the token covers the gap.",
		Stories: []Story{{
			Name: "lost-failover", Server: "Redis", Code: "SET lock A NX on the primary",
			wrong: failover(setOn, ""),
			right: failover(lockReplicated, "?replicas=1&replica_wait=1s"),
		}, {
			Name: "redlock-restart", Server: "Redis 1, 2, 3", Code: "SET lock A NX on three servers: two are enough",
			wrong: restarted(votes),
			right: restarted(redlock),
		}},
		recipe: recipe{forgetsFailover: true}, rules: []check.Rule{check.RuleExclusion}, faults: []string{faultFailover}, long: 20,
	},
	{
		Name: "counted-permits", Title: "a semaphore that is a number",
		Code:    `if INCR permits > 5: DECR permits`,
		What:    "A dead client does not count down. Each crash costs a permit, until no permit is left.",
		Instead: "Every permit is a grant of its own, with a lease, an owner and a slot.",
		recipe:  recipe{countsPermits: true}, rules: []check.Rule{check.RuleWaiting, check.RuleLate}, faults: []string{faultDies},
	},
	{
		Name: "check-then-subscribe", Title: "a check before the subscription",
		Code:    `if not acquire(): SUBSCRIBE released; wait`,
		What:    "The release comes between the check and the subscription. No second notification comes, and the waiter waits forever.",
		Instead: "A waiter has its queue entry and its subscription before its last check. It also checks again after a stated interval.",
		recipe:  recipe{checksThenSubscribes: true}, rules: []check.Rule{check.RuleWaiting, check.RuleLate},
	},
	{
		Name: "stale-breaker", Title: "an old lock taken for an abandoned one",
		Code:    `if the lock file is older than a minute: rm lock file`,
		What:    "The holder is alive. It was slow, or it has renewed the lock.",
		Instead: "A lock becomes free when its lease has expired by the store's clock, or with proof that the holder has ended.",
		recipe:  recipe{breaksStale: true}, rules: []check.Rule{check.RuleExclusion}, long: 20,
	},
	{
		Name: "compare-then-delete", Title: "a release that compares and deletes in two steps",
		Code:    `if GET lock is me: DEL lock`,
		What:    "Between the two steps the lease expires, and another client gets the lock. The delete removes that client's lock.",
		Instead: "A release compares and deletes in one atomic step at the store.",
		Stories: []Story{{
			Name: "late-compare", Server: "Redis", Code: "if GET lock is A: DEL lock",
			wrong: lateRelease(comparing(byHand(setNX, del))),
			right: lateRelease(right),
		}},
		recipe: recipe{checksThenFrees: true}, rules: []check.Rule{check.RuleExclusion}, faults: []string{faultSlow}, long: 30,
	},
	{
		Name: "no-renewal", Title: "work that outlasts its lock",
		Code:    `SET lock me NX PX 30000; work for a minute`,
		What:    "The lock expires while its holder works, and the next holder works beside it.",
		Instead: "Holdfast renews a lock every third of its TTL. If it cannot, the lock's context ends.",
		Stories: []Story{{
			Name: "work-too-long", Server: "Redis", Code: "SET lock A NX PX 1000; work for a minute; release",
			wrong: longWork(byHand(setNX, del)),
			right: longWork(holdfastOn(right.on, 2*short)),
		}},
		recipe: recipe{noRenewal: true}, rules: []check.Rule{check.RuleExclusion}, long: 20,
	},
	{
		Name: "ignores-loss", Title: "a holder that does not notice the end of its lock",
		Code:    `_ = renew(lock)        (or the end of a session that the client does not watch)`,
		What:    "The lock has ended: an operator broke it, or its session expired. The holder continues beside the next one.",
		Instead: "The lock's context ends with the loss, and its cause states the reason.",
		Stories: []Story{{
			Name: "zookeeper-session", Server: "ZooKeeper", Code: "create -e /lock; work",
			wrong: asleep(ephemeral, "its process stands still"),
			right: asleep(holdfastOn(ephemeral.on, short), "its process stands still"),
		}, {
			Name: "etcd-lease", Server: "etcd", Code: "grant a lease; put lock with it; work",
			wrong: asleep(leased, "its machine sleeps"),
			right: asleep(holdfastOn(leased.on, 2*time.Second), "its machine sleeps"),
		}},
		recipe: recipe{ignoresLoss: true}, rules: []check.Rule{check.RuleExclusion}, faults: []string{"break"}, long: 20,
	},
	{
		Name: "constant-token", Title: "no fencing token, or a constant one",
		Code:    `write(data)        (without a number that shows which holder writes)`,
		What:    "A paused holder continues and writes after the next holder. Its old data replaces the new. No lock prevents that, but a guard at the data does.",
		Instead: "Each grant has a larger token than all earlier grants, and the guard at the data refuses a smaller token.",
		Stories: []Story{{
			Name: "paused-writer", Server: "Redis", Code: "if the lock is mine: write",
			wrong: paused(writePlain),
			right: paused(writeGuarded),
		}},
		recipe: recipe{oneToken: true}, rules: []check.Rule{check.RuleTokens, check.RuleRegister},
	},
	{
		Name: "locks-twice", Title: "a client that takes a lock that it has",
		Code:    `lock(); f(), which calls lock() again`,
		What:    "The second call waits for the first one, which belongs to the same client. So this client and all others wait forever.",
		Instead: "The context has the locks of its caller. Holdfast refuses the second call, or lets it join with Reentrant.",
		Stories: []Story{{
			Name: "self-deadlock", Server: "files", Code: "lock(); f(), which calls lock() again",
			wrong: locksTwice,
			right: locksTwiceRight,
		}},
		recipe: recipe{keys: sameTwice}, rules: []check.Rule{check.RuleWaiting},
	},
	{
		Name: "opposite-order", Title: "two locks in opposite order",
		Code:    `A: lock x, lock y        B: lock y, lock x`,
		What:    "Each client has one lock and waits for the other forever.",
		Instead: "DoAll and LockAll take the names in one order, for all callers.",
		Stories: []Story{{
			Name: "crossed-names", Server: "files", Code: "A: lock x, lock y; B: lock y, lock x",
			wrong: crossed,
			right: crossedRight,
		}},
		recipe: recipe{keys: oppositeOrder}, rules: []check.Rule{check.RuleWaiting},
	},
	{
		Name: "ends-at-once", Title: "a lock that ends with its own request",
		Code:    `SELECT ... FOR UPDATE        (outside a transaction)`,
		What:    "The database commits each statement by itself, and the row is free again before the work begins.",
		Instead: "The transaction of a lock stays open until the release.",
		Stories: []Story{{
			Name: "for-update-alone", Server: "PostgreSQL", Code: "db.Query(SELECT ... FOR UPDATE); work",
			wrong: updateAlone,
			right: race(onPostgres, "comes while A works", "A has the lock until it releases it, and B finds it held."),
		}},
		recipe: recipe{endsAtOnce: true}, rules: []check.Rule{check.RuleExclusion},
	},
	{
		Name: "frees-elsewhere", Title: "a release on another connection",
		Code:    `pool.Query("SELECT GET_LOCK(...)"); pool.Query("SELECT RELEASE_LOCK(...)")`,
		What:    "The pool uses another connection for the release, which has no effect. The first connection keeps the lock in the pool.",
		Instead: "A lock uses one connection from the request to the release, and the release's answer is checked.",
		Stories: []Story{{
			Name: "pooled-unlock", Server: "PostgreSQL", Code: "db.Query(pg_try_advisory_lock); db.Query(pg_advisory_unlock)",
			wrong: unlockElsewhere,
			right: unlockElsewhereRight,
		}},
		recipe: recipe{freesElsewhere: true}, rules: []check.Rule{check.RuleWaiting, check.RuleLeftovers},
	},
	{
		Name: "locks-more", Title: "a lock of one name that blocks all names",
		Code:    `SELECT ... WHERE name = 'tea' FOR UPDATE        (without an index on name)`,
		What:    "InnoDB locks each row that it reads, and without an index it reads all rows. Clients that need other rows wait, although those rows are free.",
		Instead: "Each name is a lock of its own, which the server finds by its key.",
		Stories: []Story{{
			Name: "for-update-scan", Server: "MariaDB", Code: "SELECT ... WHERE name = 'tea' FOR UPDATE, no index on name",
			wrong: otherRows,
			right: otherRowsRight,
		}},
		recipe: recipe{keys: everyRow}, rules: []check.Rule{check.RuleWaiting}, long: 20,
	},
	{
		Name: "herd", Title: "waiters that all watch the parent node",
		Code:    `create /lock/n-; while not first: watch the children of /lock`,
		What:    "Each waiter has a node in a queue, and watches the whole queue. One release wakes all waiters. All of them read the queue, and all but one find that it is not their turn.",
		Instead: "A waiter watches only entries just before its own: a release notifies a few clients, however many wait.",
		Stories: []Story{{
			Name: "herd", Server: "ZooKeeper", Code: "create /lock/n-; while not first: watch the children of /lock",
			wrong: watchParent,
			right: watchParentRight,
		}},
	},
}
