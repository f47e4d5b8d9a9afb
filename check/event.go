//go:build linux || darwin

package check

import (
	"fmt"
	"strings"
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

// Kind is the kind of an event.
type Kind string

// The kinds of events. The worker and Op together identify a worker's lock request. A lock
// may need several requests to the store, and each has an ID.
const (
	// kindRun is the first event of a history. Note is the configuration, and Store the
	// guarantees.
	kindRun Kind = "run"
	// kindStart and kindStop are the first and the last event of a worker. With kindClosing
	// the worker closes the Locker of generation Gen with all its locks. After kindVanished
	// the store receives nothing more from the worker's client of generation Gen.
	kindStart    Kind = "start"
	kindStop     Kind = "stop"
	kindClosing  Kind = "closing"
	kindVanished Kind = "vanished"
	// The coordinator's events. The coordinator writes each before the action, except for
	// kindResume and kindHealed. It writes these two after a pause (kindPause) or a fault
	// (kindFault) has ended.
	kindKill   Kind = "kill"
	kindPause  Kind = "pause"
	kindResume Kind = "resume"
	kindFault  Kind = "fault"
	kindHealed Kind = "healed"
	// After kindCalm no fault begins. After kindDrain the coordinator stops the workers.
	kindCalm  Kind = "calm"
	kindDrain Kind = "drain"
	// kindLeft records that a worker or the coordinator found something left behind, which
	// Note describes.
	kindLeft Kind = "left"

	// The events of a lock: requested, granted or failed, renewed, lost, unlocked.
	// kindAlive records that the lock's context had not ended at T. The worker reads T
	// before it checks the context.
	kindLock     Kind = "lock"
	kindGranted  Kind = "granted"
	kindFailed   Kind = "failed"
	kindRenewed  Kind = "renewed"
	kindAlive    Kind = "alive"
	kindLost     Kind = "lost"
	kindUnlock   Kind = "unlock"
	kindUnlocked Kind = "unlocked"
	// kindStuck records that the worker stopped waiting for a lock that was not granted in
	// time.
	kindStuck Kind = "stuck"

	// The events of a request at the store: sent, queued, answered, confirmed by a renewal,
	// of unknown outcome, being undone, undone. The T of kindAnswer and kindKept is the
	// moment of the store's answer, before any injected delay.
	kindRequest Kind = "request"
	kindPlaced  Kind = "placed"
	kindAnswer  Kind = "answer"
	kindKept    Kind = "kept"
	kindUnknown Kind = "unknown"
	kindUndo    Kind = "undo"
	kindUndone  Kind = "undone"
	// kindLeave records that the store has confirmed a release that leaves the grant standing
	// for the time For. T is the moment just before the release was sent, and Until that of
	// the answer.
	kindLeave Kind = "leave"
	// kindFreed records that the store has confirmed a release, or has no such grant. kindUnsure
	// records that the answer to a renewal, or to a release that leaves the grant standing, was
	// lost: the grant may stand for TTL from T. Until is when the release was sent.
	kindFreed  Kind = "freed"
	kindUnsure Kind = "unsure"

	// The events of work on a register inside a lock: begun, value read, value plus one
	// written, refused as stale, abandoned. Res names the register, and Guarded reports
	// whether it checks tokens.
	kindBegin Kind = "begin"
	kindRead  Kind = "read"
	kindWrote Kind = "wrote"
	kindStale Kind = "stale"
	kindQuit  Kind = "quit"

	// The events of a schedule, Name: a worker serves its ticks from now on, and no longer.
	// For is the distance of the ticks, and Value the time of day, in Unix nanoseconds. The
	// work of the tick of the time Value begins, and has ended; or Every reports the tick as
	// missed, or the error Err about it.
	kindEvery    Kind = "every"
	kindEveryEnd Kind = "every-end"
	kindTick     Kind = "tick"
	kindTicked   Kind = "ticked"
	kindMissed   Kind = "missed"
	// The events of work that is done once, under the key Res: requested, begun, answered.
	// Value is 1 if the work has run.
	kindOnce     Kind = "once"
	kindRan      Kind = "ran"
	kindOnceDone Kind = "once-done"
	// kindID records that the worker has drawn the id Value from the sequence Res.
	kindID Kind = "id"
	// The events of the versioned value with the key Res. ID are the data. A read that took For
	// is recorded when it is answered. A write has the version of the data in Note.
	kindGet     Kind = "get"
	kindPut     Kind = "put"
	kindPutDone Kind = "put-done"
)

// The outcomes of a write in Event.Err, unless it was written or certainly was not.
const (
	conflict = "conflict"
	unknown  = "unknown"
)

// Event is one line of a history.
type Event struct {
	// T is the moment in nanoseconds since the machine started. All processes of the machine
	// share this clock.
	T int64 `json:"t"`
	// W is the worker, with its incarnation after a dot. It is empty for the coordinator.
	W string `json:"w,omitempty"`
	K Kind   `json:"k"`
	// Name is the name of the lock. Op is the number of the worker's lock request, and Gen
	// the generation of its Locker. ID is the ID of a request to the store.
	Name string `json:"n,omitempty"`
	Op   int    `json:"op,omitempty"`
	Gen  int    `json:"g,omitempty"`
	ID   string `json:"id,omitempty"`
	// Limit is the requested limit: 1 exclusive, driver.Unlimited shared.
	Limit int    `json:"lim,omitempty"`
	Token uint64 `json:"tok,omitempty"`
	// Slot is the permit's number plus one, 0 without a slot.
	Slot int `json:"slot,omitempty"`
	// Until is the end of the grant's validity, 0 for no end.
	Until int64 `json:"until,omitempty"`
	// TTL is the TTL that the store granted. For is how long a fault lasts or a wait may
	// take, and in kindUnlock and kindLeave how long the grant stands after its release: the
	// MinHold of the lock, and what is left of it. Both are in nanoseconds.
	TTL int64 `json:"ttl,omitempty"`
	For int64 `json:"for,omitempty"`
	// Sticky is, in kindUnlock, for how long the Locker may keep the grant, in nanoseconds.
	Sticky int64 `json:"sticky,omitempty"`
	// Wait reports whether the lock or the request waits in the queue.
	Wait bool `json:"wait,omitempty"`
	// Repeated reports whether the core repeats a request that was busy.
	Repeated bool `json:"repeated,omitempty"`
	// Path is the fast path that a request or an answer used: see pathSwap. Tokens is the number
	// of the grant's tokens, if it is not 1.
	Path   string `json:"path,omitempty"`
	Tokens int    `json:"toks,omitempty"`
	// Res, Value and Guarded describe work on a register.
	Res     string `json:"res,omitempty"`
	Value   int64  `json:"v,omitempty"`
	Guarded bool   `json:"gd,omitempty"`
	// Cause and Err describe why a lock ended. Fault is the injected fault. Note has
	// details.
	Cause string `json:"cause,omitempty"`
	Err   string `json:"err,omitempty"`
	Fault string `json:"fault,omitempty"`
	// Early reports whether the fault may take grants away before their TTL.
	Early bool `json:"early,omitempty"`
	// Takes, unless it is 0, limits which grants the fault may take away: only those that
	// were requested before the fault, or at most Takes after the fault's beginning.
	Takes int64 `json:"takes,omitempty"`
	// Rewinds reports whether the fault brings the store back to an earlier state.
	Rewinds bool `json:"rewinds,omitempty"`
	// Loses reports whether the fault may lose writes that the store has acknowledged.
	Loses bool `json:"loses,omitempty"`
	// KeepsOrder reports whether the queue keeps its order in the fault, except that the first waiters may
	// queue again.
	KeepsOrder bool               `json:"order,omitempty"`
	Note       string             `json:"note,omitempty"`
	Store      *driver.Guarantees `json:"store,omitempty"`
}

// forever is a moment after every event. It represents an end that never comes.
const forever = int64(1) << 62

// describe describes the event in a sentence; start is the beginning of the run.
func (e *Event) describe(start int64) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%9.4fs  %-6s ", float64(e.T-start)/1e9, e.W)
	b.WriteString(e.phrase(start))
	return b.String()
}

func (e *Event) phrase(start int64) string {
	until := "valid for as long as its process lives"
	if e.Until != 0 && e.Until < forever {
		until = fmt.Sprintf("valid until %.4fs", float64(e.Until-start)/1e9)
	}
	where := ""
	if e.Name != "" {
		where = fmt.Sprintf(" %q", e.Name)
	}
	switch e.K {
	case kindLock:
		return fmt.Sprintf("requests%s, %s", where, limitWords(e.Limit))
	case kindGranted:
		return fmt.Sprintf("holds%s, %s, with token %d%s, %s", where, limitWords(e.Limit), e.Token, slotWords(e.Slot), until)
	case kindRenewed:
		return fmt.Sprintf("token %d of%s is renewed, %s", e.Token, where, until)
	case kindAlive:
		return fmt.Sprintf("still works under token %d of%s: its context has not ended", e.Token, where)
	case kindLost:
		return fmt.Sprintf("finds that token %d of%s is lost (%s)", e.Token, where, e.Cause)
	case kindUnlock:
		return fmt.Sprintf("unlocks%s, token %d", where, e.Token)
	case kindUnlocked:
		return fmt.Sprintf("has unlocked%s, token %d%s", where, e.Token, describeError(e.Err))
	case kindFailed:
		return fmt.Sprintf("does not get%s%s", where, describeError(e.Err))
	case kindStuck:
		return fmt.Sprintf("gives up: no grant of%s within its timeout", where)
	case kindClosing:
		return "closes its Locker, and with it all its locks"
	case kindVanished:
		return "vanishes: the store receives nothing more from its client"
	case kindKill:
		return "is killed"
	case kindPause:
		return fmt.Sprintf("is stopped for %s", time.Duration(e.For))
	case kindResume:
		return "continues"
	case kindFault:
		note := ""
		if e.Note != "" {
			note = " (" + e.Note + ")"
		}
		return fmt.Sprintf("fault: %s%s%s%s", e.Fault, note, where, forWords(e.For))
	case kindHealed:
		return fmt.Sprintf("the fault has ended: %s%s", e.Fault, where)
	case kindRequest:
		return fmt.Sprintf("sends the store a request for%s, %s (request %s)", where, limitWords(e.Limit), e.ID)
	case kindPlaced:
		return fmt.Sprintf("has a queue entry for%s (request %s)", where, e.ID)
	case kindAnswer:
		if e.Token != 0 {
			return fmt.Sprintf("the store grants%s with token %d (request %s)", where, e.Token, e.ID)
		}
		return fmt.Sprintf("the store answers request %s for%s%s", e.ID, where, describeError(e.Err))
	case kindKept:
		return fmt.Sprintf("the store has renewed token %d of%s for %s", e.Token, where, time.Duration(e.TTL))
	case kindUnknown:
		return fmt.Sprintf("got no answer to request %s for%s: its outcome is unknown", e.ID, where)
	case kindUndo:
		return fmt.Sprintf("sends an undo of request %s for%s", e.ID, where)
	case kindUndone:
		return fmt.Sprintf("the store confirms that nothing is left of request %s for%s", e.ID, where)
	case kindLeave:
		return fmt.Sprintf("the store confirms the release of token %d of%s, which it keeps for %s", e.Token, where, time.Duration(e.For))
	case kindFreed:
		return fmt.Sprintf("token %d of%s no longer stands", e.Token, where)
	case kindUnsure:
		return fmt.Sprintf("gets no answer about token %d of%s, which may stand for %s", e.Token, where, time.Duration(e.TTL))
	case kindBegin:
		return fmt.Sprintf("begins to work on register %s under token %d", e.Res, e.Token)
	case kindRead:
		return fmt.Sprintf("reads %d from register %s under token %d", e.Value, e.Res, e.Token)
	case kindWrote:
		return fmt.Sprintf("writes %d to register %s under token %d", e.Value, e.Res, e.Token)
	case kindStale:
		return fmt.Sprintf("is refused by register %s: token %d is stale", e.Res, e.Token)
	case kindQuit:
		return fmt.Sprintf("stops working on register %s: its context has ended", e.Res)
	case kindLeft:
		return "left behind: " + e.Note
	}
	if text := e.jobPhrase(); text != "" {
		return text
	}
	return strings.TrimSpace(string(e.K) + where + " " + e.Note)
}

// jobPhrase describes an event of jobs.go.
func (e *Event) jobPhrase() string {
	at := time.Unix(0, e.Value).UTC().Format("15:04:05.000")
	switch e.K {
	case kindEvery:
		return fmt.Sprintf("serves the ticks of %q, one each %s", e.Name, time.Duration(e.For))
	case kindEveryEnd:
		return fmt.Sprintf("serves no more ticks of %q", e.Name)
	case kindTick:
		return fmt.Sprintf("begins the work of the tick %s of %q", at, e.Name)
	case kindTicked:
		return fmt.Sprintf("ends the work of the tick %s of %q", at, e.Name)
	case kindMissed:
		if e.Err == "" {
			return fmt.Sprintf("reports the tick %s of %q as missed", at, e.Name)
		}
		return fmt.Sprintf("gets an error about the tick %s of %q: %s", at, e.Name, e.Err)
	case kindOnce:
		return fmt.Sprintf("requests the work of %s, to be done once", e.Res)
	case kindRan:
		return fmt.Sprintf("begins the work of %s", e.Res)
	case kindOnceDone:
		return fmt.Sprintf("ends its request for the work of %s; did the work: %t%s", e.Res, e.Value == 1, describeError(e.Err))
	case kindID:
		return fmt.Sprintf("draws id %d of %s", e.Value, e.Res)
	case kindGet:
		return fmt.Sprintf("reads %q of %s", e.ID, e.Res)
	case kindPut:
		return fmt.Sprintf("writes %q to %s in place of %q", e.ID, e.Res, e.Note)
	case kindPutDone:
		return fmt.Sprintf("has the answer to its write of %q to %s%s", e.ID, e.Res, describeError(e.Err))
	}
	return ""
}

func limitWords(limit int) string {
	switch limit {
	case driver.Exclusive:
		return "exclusive"
	case driver.Unlimited:
		return "shared"
	}
	return fmt.Sprintf("limit %d", limit)
}

func slotWords(slot int) string {
	if slot == 0 {
		return ""
	}
	return fmt.Sprintf(" and slot %d", slot-1)
}

func describeError(err string) string {
	if err == "" {
		return ""
	}
	return ": " + err
}

func forWords(d int64) string {
	if d == 0 {
		return ""
	}
	return fmt.Sprintf(" for %s", time.Duration(d))
}
