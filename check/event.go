//go:build linux || darwin

package check

import (
	"fmt"
	"strings"
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

// Kind says what an event tells.
type Kind string

// The events. A worker's request for a lock is known by its worker and Op; a
// request to the store, of which a lock may need several, by its ID.
const (
	// KindRun opens a history: Note is the configuration, Store the guarantees.
	KindRun Kind = "run"
	// KindStart and KindStop are a worker's first and last words. KindClosing says
	// that it closes the Locker of generation Gen, and with it all its locks;
	// KindVanished, that the store hears nothing more of it.
	KindStart    Kind = "start"
	KindStop     Kind = "stop"
	KindClosing  Kind = "closing"
	KindVanished Kind = "vanished"
	// The coordinator's. Each is written before the deed, but for KindResume and
	// KindHealed, which end what KindPause and KindFault began.
	KindKill   Kind = "kill"
	KindPause  Kind = "pause"
	KindResume Kind = "resume"
	KindFault  Kind = "fault"
	KindHealed Kind = "healed"
	// KindCalm: no fault comes after this. KindDrain: workers were told to stop.
	KindCalm  Kind = "calm"
	KindDrain Kind = "drain"
	// KindLeft: something was left behind that Note names.
	KindLeft Kind = "left"

	// A lock: asked for, granted or failed, renewed, lost, unlocked. KindAlive
	// says that at T, read before the question, the lock's context had not ended.
	KindAsk      Kind = "ask"
	KindGranted  Kind = "granted"
	KindFailed   Kind = "failed"
	KindRenewed  Kind = "renewed"
	KindAlive    Kind = "alive"
	KindLost     Kind = "lost"
	KindUnlock   Kind = "unlock"
	KindUnlocked Kind = "unlocked"
	// KindStuck: the worker gave a lock up that nobody served.
	KindStuck Kind = "stuck"

	// A request at the store: sent, given a place, answered, confirmed by a
	// renewal, of unknown outcome, being undone, undone. Those of KindAnswer and KindKept carry
	// the moment at which the store had answered, before any delay on the way.
	KindRequest Kind = "request"
	KindPlaced  Kind = "placed"
	KindAnswer  Kind = "answer"
	KindKept    Kind = "kept"
	KindUnknown Kind = "unknown"
	KindUndo    Kind = "undo"
	KindUndone  Kind = "undone"

	// Work inside a lock on a register: begun, the value read, one more written,
	// refused as stale, given up. Res is the register; Guarded tells which kind.
	KindBegin Kind = "begin"
	KindRead  Kind = "read"
	KindWrote Kind = "wrote"
	KindStale Kind = "stale"
	KindQuit  Kind = "quit"
)

// Event is one line of a history.
type Event struct {
	// T is the moment on the machine's clock (see Now), in nanoseconds.
	T int64 `json:"t"`
	// W is the worker, with its incarnation after a dot; empty for the
	// coordinator.
	W    string `json:"w,omitempty"`
	K    Kind   `json:"k"`
	Name string `json:"n,omitempty"`
	Op   int    `json:"op,omitempty"`
	Gen  int    `json:"g,omitempty"`
	ID   string `json:"id,omitempty"`
	// Limit is what was asked: 1 exclusive, driver.Unlimited shared.
	Limit int    `json:"lim,omitempty"`
	Token uint64 `json:"tok,omitempty"`
	// Slot is the permit's number plus one; 0 is none.
	Slot int `json:"slot,omitempty"`
	// Until is when trust in the grant ends, 0 for never.
	Until int64 `json:"until,omitempty"`
	// TTL is what the store gave, and For how long a fault lasts or a wait may
	// take, in nanoseconds.
	TTL int64 `json:"ttl,omitempty"`
	For int64 `json:"for,omitempty"`
	// Wait: the lock or the request queues.
	Wait bool `json:"wait,omitempty"`
	// Res, Value and Guarded are about work on a register.
	Res     string `json:"res,omitempty"`
	Value   int64  `json:"v,omitempty"`
	Guarded bool   `json:"gd,omitempty"`
	// Cause and Err say why something ended, Fault what was done, Note more.
	Cause string `json:"cause,omitempty"`
	Err   string `json:"err,omitempty"`
	Fault string `json:"fault,omitempty"`
	// Early: the fault takes grants away before their TTL.
	Early bool `json:"early,omitempty"`
	// Takes, unless 0: of the time from the fault's beginning in which the grants were asked for
	// that it may take away.
	Takes int64 `json:"takes,omitempty"`
	// Rewinds: the fault brings the store back to an earlier state.
	Rewinds bool `json:"rewinds,omitempty"`
	// Loses: the fault loses writes that the store has acknowledged.
	Loses bool               `json:"loses,omitempty"`
	Note  string             `json:"note,omitempty"`
	Store *driver.Guarantees `json:"store,omitempty"`
}

// forever stands for a moment that does not come.
const forever = int64(1) << 62

// Words tells the event to a person; start is the beginning of the run.
func (e *Event) Words(start int64) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%9.4fs  %-6s ", float64(e.T-start)/1e9, e.W)
	b.WriteString(e.phrase(start))
	return b.String()
}

func (e *Event) phrase(start int64) string {
	until := "for as long as its process lives"
	if e.Until != 0 && e.Until < forever {
		until = fmt.Sprintf("until %.4fs", float64(e.Until-start)/1e9)
	}
	where := ""
	if e.Name != "" {
		where = fmt.Sprintf(" %q", e.Name)
	}
	switch e.K {
	case KindAsk:
		return fmt.Sprintf("asks for%s, %s", where, limitWords(e.Limit))
	case KindGranted:
		return fmt.Sprintf("holds%s, %s, with token %d%s, trusted %s", where, limitWords(e.Limit), e.Token, slotWords(e.Slot), until)
	case KindRenewed:
		return fmt.Sprintf("token %d of%s is renewed, trusted %s", e.Token, where, until)
	case KindAlive:
		return fmt.Sprintf("still works under token %d of%s: its context has not ended", e.Token, where)
	case KindLost:
		return fmt.Sprintf("learns that token %d of%s is lost (%s)", e.Token, where, e.Cause)
	case KindUnlock:
		return fmt.Sprintf("unlocks%s, token %d", where, e.Token)
	case KindUnlocked:
		return fmt.Sprintf("has unlocked%s, token %d%s", where, e.Token, errWords(e.Err))
	case KindFailed:
		return fmt.Sprintf("does not get%s%s", where, errWords(e.Err))
	case KindStuck:
		return fmt.Sprintf("has waited for%s in vain and gives up", where)
	case KindClosing:
		return "closes its Locker, and with it all its locks"
	case KindVanished:
		return "vanishes: the store hears no more of its client"
	case KindKill:
		return "is killed"
	case KindPause:
		return fmt.Sprintf("is stopped for %s", time.Duration(e.For))
	case KindResume:
		return "goes on"
	case KindFault:
		note := ""
		if e.Note != "" {
			note = " (" + e.Note + ")"
		}
		return fmt.Sprintf("fault: %s%s%s%s", e.Fault, note, where, forWords(e.For))
	case KindHealed:
		return fmt.Sprintf("the fault has ended: %s%s", e.Fault, where)
	case KindRequest:
		return fmt.Sprintf("asks the store for%s, %s (request %s)", where, limitWords(e.Limit), e.ID)
	case KindPlaced:
		return fmt.Sprintf("has a place in the queue of%s (request %s)", where, e.ID)
	case KindAnswer:
		if e.Token != 0 {
			return fmt.Sprintf("the store grants%s with token %d (request %s)", where, e.Token, e.ID)
		}
		return fmt.Sprintf("the store answers request %s for%s%s", e.ID, where, errWords(e.Err))
	case KindKept:
		return fmt.Sprintf("the store has renewed token %d of%s for %s", e.Token, where, time.Duration(e.TTL))
	case KindUnknown:
		return fmt.Sprintf("does not know what became of request %s for%s", e.ID, where)
	case KindUndo:
		return fmt.Sprintf("tries to undo request %s for%s", e.ID, where)
	case KindUndone:
		return fmt.Sprintf("the store says that nothing is left of request %s for%s", e.ID, where)
	case KindBegin:
		return fmt.Sprintf("begins to work on register %s under token %d", e.Res, e.Token)
	case KindRead:
		return fmt.Sprintf("reads %d from register %s under token %d", e.Value, e.Res, e.Token)
	case KindWrote:
		return fmt.Sprintf("writes %d to register %s under token %d", e.Value, e.Res, e.Token)
	case KindStale:
		return fmt.Sprintf("is refused by register %s: token %d is stale", e.Res, e.Token)
	case KindQuit:
		return fmt.Sprintf("stops working on register %s: its context has ended", e.Res)
	case KindLeft:
		return "left behind: " + e.Note
	}
	return strings.TrimSpace(string(e.K) + where + " " + e.Note)
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

func errWords(err string) string {
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
