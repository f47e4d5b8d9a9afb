package redlock

import (
	"context"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/backoff"
	"github.com/holdfast-go/holdfast/internal/calls"
	"github.com/holdfast-go/holdfast/internal/held"
	"github.com/holdfast-go/holdfast/internal/wakeup"
	"github.com/holdfast-go/holdfast/redisstore/internal/server"
)

// voteState is the state of one server's vote for a ballot, as far as this client has learned it.
type voteState int

const (
	voteNone      voteState = iota // there is no vote, and none can appear
	voteRequested                  // a request for the vote is in flight
	voteGiven                      // the vote stood at the server's last answer
	voteUnsure                     // a request for the vote had no answer
	voteEnding                     // a request that ends the vote is in flight
)

// vote is one server's part in a ballot.
type vote struct {
	state   voteState
	counter uint64 // the server's counter of tokens, before the vote
	queued  bool   // the server has the queue entry
	left    bool   // there was no vote to end, only the queue entry
	raised  bool   // the server has acknowledged the larger token
	slow    bool   // after a quorum of other answers the ballot continues without this one
	// last is the answer of the last request: a letter of vote.lua or raise.lua, or 0 for an error.
	last byte
	err  error
	// rival is the value of the lock at the server, and until is when that value expires.
	rival     string
	until     time.Time
	ended     byte // the answer of end.lua
	unclear   bool // a request that ends the vote had no answer, and may have ended it
	requested time.Time
}

// ballot is one attempt to get a quorum of votes, and then its grant. Each server has at most one request
// of a ballot in flight, so that requests take effect in order.
type ballot struct {
	s        *store
	r        driver.Request
	id       string // the request's ID, a dot, and a number
	key      string
	bucket   uint16
	owner    string // see server.OwnerText
	entry    string // the queue entry, "" if none
	since    int64  // when the request began to wait, by the fleet's time
	ttl      time.Duration
	stands   time.Duration // how long a vote stands
	voteSent time.Time     // when the last request that may set a vote was sent

	mu      sync.Mutex
	votes   []vote
	changed chan struct{} // its buffer holds one value
	token   uint64
	sent    driver.Instant // just before the first request
	granted bool
	held    held.Grant // set when the ballot is granted
	// validFrom is when the last confirmed request was sent. The TTL counts from there.
	validFrom driver.Instant
	ended     bool      // end was called
	undone    bool      // Undo has ended the ballot
	answered  bool      // a Release has decided about the grant; each later one is denied
	broken    bool      // the servers have a tombstone of Break or Undo, so that no renewal counts
	wake      bool      // ending a vote notifies a waiter
	keepUntil time.Time // until when a release keeps the name taken; zero if it does not
	graceEnd  time.Time // until when awaitEnd waits for the servers beyond a quorum
}

// standing returns how long a vote for a TTL stands: the TTL, plus the possible drift of the clocks in that
// time, plus twice the tolerated difference between clocks.
func (s *store) standing(ttl time.Duration) time.Duration {
	return ttl + ttl/100 + 2*time.Millisecond + 2*s.cfg.skew
}

// timeout returns the timeout of one request to a server. It need not be short: a client that has the
// answers of a quorum does not wait for the other servers.
func timeout(ttl time.Duration) time.Duration {
	return min(max(ttl/4, time.Second), 2*time.Second)
}

func (s *store) newBallot(r driver.Request, n int, entry string, since int64) *ballot {
	key := s.prefix() + r.Name
	ttl := (r.TTL + time.Millisecond - 1).Truncate(time.Millisecond)
	b := &ballot{
		s: s, r: r, id: r.ID + "." + strconv.Itoa(n), key: key, bucket: server.Bucket(key), entry: entry, since: since,
		ttl: ttl, stands: s.standing(ttl), votes: make([]vote, len(s.nodes)), changed: make(chan struct{}, 1),
	}
	s.mu.Lock()
	s.ballots[r.ID] = append(s.ballots[r.ID], b)
	s.mu.Unlock()
	return b
}

// forget removes a ballot without any vote.
func (b *ballot) forget() {
	b.s.mu.Lock()
	defer b.s.mu.Unlock()
	others := slices.DeleteFunc(b.s.ballots[b.r.ID], func(o *ballot) bool { return o == b })
	if len(others) == 0 {
		delete(b.s.ballots, b.r.ID)
	} else {
		b.s.ballots[b.r.ID] = others
	}
}

// forgetClean removes a ballot if no server has a vote for it, after the last of its requests. The caller holds the mutex.
func (b *ballot) forgetClean() {
	if b.clean() == len(b.votes) {
		b.forget()
	}
}

// value returns the value of the lock under this ballot: the ballot, the token, the start of the wait, the
// TTL and the owner.
func (b *ballot) value(token uint64, owner string) string {
	return strings.Join([]string{b.id, text(token), text(b.since), millis(b.ttl), owner}, " ")
}

// propose returns a token above every token that the client has seen, and not below now.
func (b *ballot) propose(now int64) uint64 {
	return max(b.s.tokens.Of(b.bucket).Load()+1, uint64(max(now, 1)))
}

// requestVote requests the vote of a server, in the background. The caller holds the mutex.
func (b *ballot) requestVote(n *node) {
	v := &b.votes[n.i]
	v.state, v.last, v.err, v.rival, v.slow = voteRequested, 0, nil, "", n.silent.Load()
	b.voteSent = time.Now()
	v.requested = b.voteSent
	token := b.token
	if !b.s.task(func() {
		b.mu.Lock()
		args := b.voteArgs(token, b.owner)
		b.mu.Unlock()
		r, err := n.eval(timeout(b.ttl), voteScript, b.voteKeys(), args)
		b.mu.Lock()
		b.recordAnswer(n, r, err)
		b.mu.Unlock()
	}) {
		v.state, v.err = voteNone, calls.ErrClosed
		wakeup.Send(b.changed)
	}
}

func (b *ballot) voteKeys() []string {
	return []string{b.key, stateKey, tombstone + b.id, tombstone + b.r.ID, queueKey + b.key, positionKey + b.key}
}

// voteArgs returns the arguments of a request that is sent now. The caller holds the mutex.
func (b *ballot) voteArgs(token uint64, owner string) []string {
	s := b.s
	args := append(make([]string, 0, 14), b.value(token, owner), b.id+" ", millis(b.stands), field(b.bucket), text(token),
		text(s.now()), text(s.cfg.skew.Microseconds()), millis(s.cfg.maxTTL), strconv.Itoa(len(s.nodes)), server.Digit(b.granted))
	if b.entry != "" && !b.granted {
		args = append(args, b.entry, text(b.since), millis(queueTTL), millis(driver.PositionTime(b.ttl)))
	}
	return args
}

// recordAnswer records the answer to a request for a vote. The caller holds the mutex.
func (b *ballot) recordAnswer(n *node, r reply, err error) {
	v := &b.votes[n.i]
	v.state, v.err, v.last, v.slow = voteNone, err, r.kind, false
	switch {
	case err == nil:
		b.recordReply(n, v, r)
		b.s.tokens.Raise(b.bucket, v.counter)
	case driver.CodeOf(err) == driver.CodeUnknown:
		v.state = voteUnsure
	}
	if b.ended { // mutation: redlock-late
		b.endVote(n)
		b.forgetClean()
	}
	wakeup.Send(b.changed)
}

// recordReply records the reply of vote.lua. It sets the state of a vote that may stand, and the
// error of a server that gives no vote to any ballot.
func (b *ballot) recordReply(n *node, v *vote, r reply) {
	unavailable := func(reason string) error {
		return driver.Errorf(driver.CodeUnavailable, "%s: %s", n.store, reason)
	}
	switch {
	case r.kind == answerVoted && len(r.values) == 1:
		v.state = voteGiven
		v.counter, _ = strconv.ParseUint(r.values[0], 10, 64)
	case (r.kind == answerBusy || r.kind == answerBehind) && len(r.values) == 3:
		v.queued = b.entry != ""
		v.counter, _ = strconv.ParseUint(r.values[0], 10, 64)
		v.until = time.Now().Add(never)
		if ms, _ := strconv.ParseInt(r.values[2], 10, 64); ms >= 0 {
			v.until = time.Now().Add(time.Duration(min(ms, never.Milliseconds())) * time.Millisecond)
		}
		v.rival = r.values[1]
	case r.kind == answerWithheld:
		n.admitSoon()
		if v.err = n.whyWithheld(); v.err == nil {
			v.err = unavailable("its vote is withheld: it was restarted, is new, or has lost its data")
		}
	case r.kind == answerClock:
		if n.outOfLine() {
			n.admitSoon()
			v.err = unavailable("its vote is withheld: its clock disagrees with the majority's")
		} else {
			v.err = unavailable("the request arrived too late")
		}
	case r.kind == answerWithdrawn:
		v.err = unavailable("the request was withdrawn")
	case r.kind == answerMaxTTL && len(r.values) == 1:
		v.err = driver.Errorf(driver.CodeRefused, "%s: the fleet was set up with max_ttl=%sms: use the same, or delete %s on its servers", n.store, r.values[0], stateKey)
	case r.kind == answerSize && len(r.values) == 1:
		v.err = driver.Errorf(driver.CodeRefused, "%s: the fleet has %s servers, not %d", n.store, r.values[0], len(b.votes))
	default:
		v.state, v.err = voteUnsure, driver.Errorf(driver.CodeUnknown, "%s: the script vote answered %c %q", n.store, r.kind, r.values)
	}
}

// never is the time after which a lock without an expiry is free. A client of another library may
// have written it.
const never = 10 * 365 * 24 * time.Hour

// end withdraws the ballot, or releases the grant. It ends every vote that stands or may still appear, in
// the background, until the server confirms that or the vote must have expired. The caller holds the mutex.
func (b *ballot) end(wake bool, keep time.Duration) {
	if b.ended {
		return
	}
	b.ended, b.wake, b.graceEnd = true, wake, time.Now().Add(quorumGrace)
	if keep > 0 {
		b.keepUntil = time.Now().Add(keep)
	}
	for _, n := range b.s.nodes {
		b.endVote(n)
	}
}

// endVote begins to end a vote, or removes the queue entry of a request that no longer waits. If a request for
// the vote is in flight, its answer comes first. The caller holds the mutex.
func (b *ballot) endVote(n *node) {
	v := &b.votes[n.i]
	left := v.state == voteNone && v.queued && !b.waits()
	if v.state != voteGiven && v.state != voteUnsure && !left {
		return
	}
	v.queued, v.left = false, left
	keepOut := "0"
	if v.state == voteUnsure {
		keepOut = b.s.keepOutMillis()
	}
	v.state = voteEnding
	if !b.s.task(func() { b.endAt(n, keepOut) }) {
		v.state, v.err = voteUnsure, calls.ErrClosed
		wakeup.Send(b.changed)
	}
}

// endArgs returns the arguments of end.lua for a request that is sent now.
func (s *store) endArgs(prefix, keepOut, keep, entry string, wake bool) []string {
	return []string{prefix, keepOut, keep, entry, server.Digit(wake), text(s.now()), text(s.cfg.skew.Microseconds())}
}

// endKeys returns the keys of end.lua, for a lock and the ID of a tombstone.
func endKeys(lock, id string) []string {
	return []string{lock, stateKey, tombstone + id, queueKey + lock, keptKey, positionKey + lock}
}

// waits reports whether the request of the ballot still has a queue entry, which it then keeps.
func (b *ballot) waits() bool {
	if b.entry == "" {
		return false
	}
	b.s.mu.Lock()
	defer b.s.mu.Unlock()
	return b.s.waiters[b.r.ID] != nil
}

// keepMillis returns for how long a request that is sent now keeps the name taken. lost reports that it does
// not although it should: the TTL has passed, so a server that was restarted may be admitted without the lock.
func (b *ballot) keepMillis() (keep string, lost bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	left := time.Until(b.keepUntil)
	if left <= 0 {
		return "0", false
	}
	if passed, _ := b.validFrom.Elapsed(); passed >= b.ttl {
		return "0", true
	}
	return millis(left), false
}

// late returns the age after which every server refuses a request for a vote. It is also how long a
// tombstone stands that refuses such a request.
func (s *store) late() time.Duration { return 4*s.cfg.skew + time.Second }

func (s *store) keepOutMillis() string { return millis(s.late()) }

// endAt ends the vote at one server. It repeats the request until the server has answered or the vote
// must have expired. A tombstone stands for keepOut milliseconds.
func (b *ballot) endAt(n *node, keepOut string) {
	expiry := b.expiry(n)
	for failures := 0; ; failures++ {
		keep, lost := b.keepMillis()
		entry := b.entry
		if b.waits() {
			entry = ""
		}
		args := b.s.endArgs(b.id+" ", keepOut, keep, entry, b.wake)
		r, err := n.eval(timeout(b.ttl), endScript, endKeys(b.key, b.id), args)
		unclear := err != nil && driver.CodeOf(err) == driver.CodeUnknown
		late := err == nil && r.kind == answerClock
		if err == nil && !late || time.Now().After(expiry) {
			b.mu.Lock()
			v := &b.votes[n.i]
			v.state = voteNone
			v.unclear = v.unclear || unclear || lost
			// The answer of a renewal may arrive later, so that the vote ends twice.
			if v.ended != answerVoteEnded && v.ended != answerKept && !lost {
				v.ended = r.kind
			}
			b.forgetClean()
			wakeup.Send(b.changed)
			b.mu.Unlock()
			return
		}
		if unclear {
			keepOut = b.s.keepOutMillis() // also refuses a late request for the vote
			b.mu.Lock()
			b.votes[n.i].unclear = true
			b.mu.Unlock()
		}
		if backoff.Sleep(b.s.life, rand.N(20*time.Millisecond<<min(failures, 5))+5*time.Millisecond) != nil {
			b.mu.Lock()
			b.votes[n.i].state = voteUnsure
			wakeup.Send(b.changed)
			b.mu.Unlock()
			return
		}
	}
}

// expiry returns when the vote of a server must have expired, or its queue entry. A lock that a release keeps is no
// longer a vote.
func (b *ballot) expiry(n *node) time.Time {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.votes[n.i].left {
		return time.Now().Add(max(queueTTL, driver.PositionTime(b.ttl)))
	}
	return b.voteSent.Add(2*b.s.cfg.skew + b.stands)
}

// clean returns how many servers certainly have no vote. The caller holds the mutex.
func (b *ballot) clean() (n int) {
	for i := range b.votes {
		if b.votes[i].state == voteNone {
			n++
		}
	}
	return n
}

// awaits reports whether a vote stands, or may stand, at a server that has not been
// silent. The caller holds the mutex.
func (b *ballot) awaits() bool {
	return slices.ContainsFunc(b.s.nodes, func(n *node) bool {
		return b.votes[n.i].state != voteNone && !n.silent.Load()
	})
}

// awaitEnd waits until a withdrawn ballot can no longer be granted, and then a little longer for the
// other servers. It reports whether the ballot can no longer be granted.
func (b *ballot) awaitEnd(ctx context.Context, timeout time.Duration) bool {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), timeout)
	defer cancel()
	quorum := b.s.quorum
	var grace <-chan time.Time
	for {
		b.mu.Lock()
		clean, graceEnd := b.clean(), b.graceEnd
		if !b.awaits() {
			graceEnd = time.Time{}
		}
		b.mu.Unlock()
		if clean == len(b.votes) {
			b.forget()
			return true
		}
		if clean >= quorum && grace == nil {
			grace = time.After(time.Until(graceEnd))
		}
		select {
		case <-b.changed:
		case <-grace:
			return true
		case <-ctx.Done():
			return clean >= quorum
		case <-b.s.life.Done():
			return clean >= quorum
		}
	}
}

const (
	// withdrawTimeout limits the withdrawal of the votes of a failed request.
	withdrawTimeout = time.Second
	// quorumGrace is how long the client waits for the other servers after a quorum of them has
	// answered.
	quorumGrace = 20 * time.Millisecond
)
