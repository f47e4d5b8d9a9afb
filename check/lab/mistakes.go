//go:build linux || darwin

package lab

import "github.com/holdfast-go/holdfast/check"

// Mistake is a classic mistake of locks, and the experiment that shows it.
type Mistake struct {
	// Name is what it is called here, Title what it is in a few words.
	Name, Title string
	// Code is how it looks in a program, What what then happens, and Instead what
	// holdfast does.
	Code, What, Instead string

	recipe recipe
	// rules: at least one of them convicts.
	rules []check.Rule
	// faults are what brings it to light; none where work alone does.
	faults []string
	// long is how many locks of a hundred are held beyond the TTL, where it takes such
	// a holder to show it.
	long int
}

var mistakes = []Mistake{
	{
		Name: "delete-anyones", Title: "a release that does not compare the owner",
		Code:    `DEL lock`,
		What:    "A holder whose lease has run out while it was slow releases the lock of the next holder, and a third client gets in beside that one.",
		Instead: "Every release compares the grant's own ID or token in the same atomic step.",
		recipe:  recipe{deleteAnyones: true}, rules: []check.Rule{check.RuleExclusion}, faults: []string{"break", "delay"}, long: 20,
	},
	{
		Name: "renew-anyones", Title: "a renewal that does not compare the owner",
		Code:    `every 10 s: EXPIRE lock 30`,
		What:    "A holder that has lost the lock keeps another's alive, takes the answer for its own, and goes on working.",
		Instead: "A renewal proves ownership and never revives a grant that has ended; one that has gone ends the holder's context.",
		recipe:  recipe{renewAnyones: true}, rules: []check.Rule{check.RuleExclusion}, faults: []string{"break"}, long: 20,
	},
	{
		Name: "never-expires", Title: "a lock without an expiry",
		Code:    `SETNX lock me        (or EXPIRE as a second command, which a crash prevents)`,
		What:    "A holder dies, and the lock stands forever.",
		Instead: "Every grant has a lease, or ends with its holder's connection or process, from the first step on.",
		recipe:  recipe{neverExpires: true}, rules: []check.Rule{check.RuleWaiting, check.RuleLeftovers}, faults: []string{"vanish"},
	},
	{
		Name: "check-then-act", Title: "a look and a write, in two steps",
		Code:    `if GET lock is empty: SET lock me`,
		What:    "Two clients see that it is free, and both take it.",
		Instead: "The store decides and writes in one atomic step.",
		recipe:  recipe{checkThenAct: true}, rules: []check.Rule{check.RuleExclusion},
	},
	{
		Name: "client-clock", Title: "the clients' clocks decide what has expired",
		Code:    `SETNX lock (my time + 30 s); if the other's time is past by mine: GETSET`,
		What:    "A machine whose clock is ahead takes a lock that its holder still relies on.",
		Instead: "The store's own clock ends a lease, and a holder measures its validity by its monotonic clock, from before its request.",
		recipe:  recipe{clientClock: true}, rules: []check.Rule{check.RuleExclusion}, faults: []string{"cut"}, long: 20,
	},
	{
		Name: "clock-token", Title: "a fencing token from the client's clock",
		Code:    `token = time.Now().UnixMilli()`,
		What:    "A later holder on a slower clock has a smaller token, or two have the same: the resource refuses the right one, or takes both.",
		Instead: "Tokens come from the store, in the same step as the grant, and always rise.",
		recipe:  recipe{clockToken: true}, rules: []check.Rule{check.RuleTokens, check.RuleRegister},
	},
	{
		Name: "trust-from-receipt", Title: "a validity that runs from the answer",
		Code:    `ok = SET lock me NX PX 30000; deadline = now + 30 s`,
		What:    "The server counts from when the request came. After a slow answer the holder relies on a lock that another client already has.",
		Instead: "The validity runs from before the request was sent, less a margin.",
		recipe:  recipe{trustReceipt: true}, rules: []check.Rule{check.RuleExclusion}, faults: []string{faultSlow}, long: 20,
	},
	{
		Name: "lost-is-no", Title: "no answer taken for a no",
		Code:    `if err := acquire(ctx); err != nil { return err }      (and a session keeps it alive)`,
		What:    "The request was done and its answer lost. No client relies on the lock, the session renews it, and all others wait.",
		Instead: "Unknown is not no: it is undone in the background until the store confirms that nothing stands.",
		recipe:  recipe{lostIsNo: true}, rules: []check.Rule{check.RuleWaiting, check.RuleLeftovers}, faults: []string{"drop-answers"},
	},
	{
		Name: "forgetful-failover", Title: "a failover that forgets, and a client that is silent",
		Code:    `SET lock me NX on a primary; its replica takes over without it`,
		What:    "The new primary gives the lock away again while its holder relies on it.",
		Instead: "A store's guarantees say what a failover can take; replicas can be waited for; the token covers the gap at the resource.",
		recipe:  recipe{forgetsFailover: true}, rules: []check.Rule{check.RuleExclusion}, faults: []string{faultFailover}, long: 20,
	},
	{
		Name: "counted-permits", Title: "a semaphore that is a number",
		Code:    `if INCR permits > 5: DECR permits`,
		What:    "A client that dies does not count down: each crash costs a permit, until none is left.",
		Instead: "Every permit is a grant of its own, with a lease, an owner and a slot.",
		recipe:  recipe{countsPermits: true}, rules: []check.Rule{check.RuleWaiting}, faults: []string{faultDies},
	},
	{
		Name: "look-then-listen", Title: "a look, and then the subscription",
		Code:    `if not acquire(): SUBSCRIBE released; wait`,
		What:    "The release comes between the two. No second notification comes, and the waiter waits in vain.",
		Instead: "A waiter has its queue entry and its subscription before the last look, and looks again after a stated time in any case.",
		recipe:  recipe{looksThenHears: true}, rules: []check.Rule{check.RuleWaiting},
	},
	{
		Name: "stale-breaker", Title: "an old lock taken to be forgotten",
		Code:    `if the lock file is older than a minute: rm lock file`,
		What:    "The holder was slow, or had renewed it, and is alive.",
		Instead: "Only a lease that has run out by the store's clock, or proof that the holder has ended, frees a lock.",
		recipe:  recipe{breaksStale: true}, rules: []check.Rule{check.RuleExclusion}, long: 20,
	},
	{
		Name: "compare-then-delete", Title: "a release that compares, and deletes in a second step",
		Code:    `if GET lock is me: DEL lock`,
		What:    "Between the two the lease runs out, and another client gets the lock. The delete removes that client's lock.",
		Instead: "A release compares and deletes in one atomic step at the store.",
		recipe:  recipe{looksThenFrees: true}, rules: []check.Rule{check.RuleExclusion}, faults: []string{faultSlow}, long: 30,
	},
	{
		Name: "no-renewal", Title: "work that outlasts its lock, without renewal",
		Code:    `SET lock me NX PX 30000; work for a minute`,
		What:    "The lock expires while its holder works, and the next holder works beside it.",
		Instead: "A lock is renewed every third of its TTL, and its context ends when it cannot be.",
		recipe:  recipe{noRenewal: true}, rules: []check.Rule{check.RuleExclusion}, long: 20,
	},
	{
		Name: "ignores-loss", Title: "a lock that has ended, and a holder that does not look",
		Code:    `_ = renew(lock)        (or the end of a session that the client does not watch)`,
		What:    "The lock is gone: an operator broke it, or its session expired. The holder goes on beside the next one.",
		Instead: "The lock's context ends with the loss, and the cause says why.",
		recipe:  recipe{ignoresLoss: true}, rules: []check.Rule{check.RuleExclusion}, faults: []string{"break"}, long: 20,
	},
	{
		Name: "constant-token", Title: "no fencing token, or always the same",
		Code:    `write(data)        (without a number that shows which holder writes)`,
		What:    "A holder that was paused writes after the next one, and its old data replaces the new.",
		Instead: "Each grant has a larger token than all before, and the guard at the data refuses a smaller one.",
		recipe:  recipe{oneToken: true}, rules: []check.Rule{check.RuleTokens, check.RuleRegister},
	},
	{
		Name: "locks-twice", Title: "a client that takes a lock which it has",
		Code:    `lock(); f(), which calls lock() again`,
		What:    "The second call waits for the first one, which is the same client: forever, and all others with it.",
		Instead: "The context has the locks that the caller holds: the second call is refused, or joins with Reentrant.",
		recipe:  recipe{keys: sameTwice}, rules: []check.Rule{check.RuleWaiting},
	},
	{
		Name: "opposite-order", Title: "two locks, taken in opposite order",
		Code:    `A: lock x, lock y        B: lock y, lock x`,
		What:    "Each has one of them and waits for the other, forever.",
		Instead: "DoAll and LockAll take the names in one order, for all callers.",
		recipe:  recipe{keys: oppositeOrder}, rules: []check.Rule{check.RuleWaiting},
	},
	{
		Name: "ends-at-once", Title: "a lock that ends with the request that took it",
		Code:    `SELECT ... FOR UPDATE        (outside a transaction)`,
		What:    "The database commits each statement by itself, and the row is free again before the work begins.",
		Instead: "The transaction that has the lock is open until the release.",
		recipe:  recipe{endsAtOnce: true}, rules: []check.Rule{check.RuleExclusion},
	},
	{
		Name: "frees-elsewhere", Title: "a release on a connection that does not have the lock",
		Code:    `pool.Query("SELECT GET_LOCK(...)"); pool.Query("SELECT RELEASE_LOCK(...)")`,
		What:    "The pool takes another connection for the release, which releases nothing. The first one keeps the lock in the pool.",
		Instead: "A lock has one connection from the request to the release, and the release's answer is checked.",
		recipe:  recipe{freesElsewhere: true}, rules: []check.Rule{check.RuleWaiting, check.RuleLeftovers},
	},
	{
		Name: "locks-more", Title: "a lock of one name that shuts out all others",
		Code:    `SELECT ... WHERE name = 'tea' FOR UPDATE        (without an index on name)`,
		What:    "InnoDB locks each row that it reads, and without an index it reads all. Clients that need other rows wait, although those are free.",
		Instead: "Each name is a lock of its own, which the server finds by its key.",
		recipe:  recipe{keys: everyRow}, rules: []check.Rule{check.RuleWaiting}, long: 20,
	},
}
