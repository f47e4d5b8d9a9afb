package sqlkit

import (
	"context"
	"database/sql"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/driver/record"
	"github.com/holdfast-go/holdfast/internal/must"
)

// rowServer is a database with the rows of names. It is also the only link to that
// database.
type rowServer struct {
	meeting
	mu         sync.Mutex
	rows       map[string]*fakeRow // by name, with the namespace
	statements int
	sent       []string                  // the statements that write
	before     func(script string) error // is called before a script
	after      func(script string) error // is called after it
	readOnly   bool
	locked     func(name string) bool // whether a write leaves the row out; may be nil
}

type fakeRow struct {
	version, token int64
	state          string
}

var (
	errDeadlock = errors.New("deadlock")
	errNoAnswer = errors.New("connection lost")
)

// rowFaults classifies the errors of a rowServer.
type rowFaults struct{}

func (rowFaults) Sort(err error) (error, bool) {
	switch {
	case errors.Is(err, errDeadlock):
		return &driver.Error{Code: driver.CodeUnavailable, Err: err}, true
	case errors.Is(err, errNoAnswer):
		return &driver.Error{Code: driver.CodeUnknown, Err: err}, false
	}
	return err, false
}

// rowTable is the dialect of a rowServer.
type rowTable struct{ Table }

func (rowTable) Read(name []byte, _ int) string { return "read " + hex.EncodeToString(name) }
func (rowTable) Find(names [][]byte) string {
	s := "find"
	for _, name := range names {
		s += " " + hex.EncodeToString(name)
	}
	return s
}

func (t rowTable) Update(name []byte, old int64, w Write) string {
	return strings.Replace(t.UpdateEach([]Change{{Name: name, Old: old, Write: w}}), "write ", "write-one ", 1)
}

func (rowTable) UpdateEach(changes []Change) string {
	b, err := json.Marshal(changes)
	if err != nil {
		panic(err)
	}
	return "write " + string(b)
}
func (rowTable) Wake([]byte, string) string { return "" }

func (s *rowServer) Run(_ context.Context, statements ...string) (answers Answers, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	script := strings.Join(statements, ";")
	if s.before != nil {
		if err := s.before(script); err != nil {
			return nil, err
		}
	}
	for _, statement := range statements {
		s.statements++
		kind, rest, _ := strings.Cut(statement, " ")
		if kind == "write" || kind == "write-one" {
			s.sent = append(s.sent, rest)
			s.write(rest)
			continue
		}
		var rows Rows
		for name := range strings.FieldsSeq(rest) {
			if row := s.row(name, kind == "read"); row != nil {
				rows = append(rows, row)
			}
		}
		answers = append(answers, rows)
	}
	if s.after != nil {
		if err := s.after(script); err != nil {
			return nil, err
		}
	}
	return answers, nil
}

func (s *rowServer) write(changes string) {
	var all []Change
	if err := json.Unmarshal([]byte(changes), &all); err != nil {
		panic(err)
	}
	for _, c := range all {
		if r := s.rows[string(c.Name)]; r != nil && r.version == c.Old && time.Now().UnixMicro() < c.Deadline && (s.locked == nil || !s.locked(string(c.Name))) {
			*r = fakeRow{c.Version, c.Token, c.State}
		}
	}
}

// row returns the answer for one name, nil if there is none.
func (s *rowServer) row(name string, always bool) Row {
	key, err := hex.DecodeString(name)
	if err != nil {
		panic(err)
	}
	text := func(s string) sql.NullString { return sql.NullString{String: s, Valid: true} }
	row := Row{text(strconv.FormatInt(time.Now().UnixMicro(), 10)), text("0"), {}, {}, {}, text(strconv.FormatBool(s.readOnly))}
	r := s.rows[string(key)]
	switch {
	case r != nil:
		row[2], row[3], row[4] = text(strconv.FormatInt(r.version, 10)), text(strconv.FormatInt(r.token, 10)), text(r.state)
	case !always:
		return nil
	}
	if !always {
		row[1] = text(name)
	}
	return row
}

// content is the state of a row as package record writes it.
type content struct {
	Holders []holder `json:"holders"`
	Taken   []taken  `json:"taken,omitempty"`
}

type holder struct {
	ID      string `json:"id"`
	Reason  string `json:"reason,omitempty"`
	Limit   int    `json:"limit"`
	Slot    int    `json:"slot"`
	Token   uint64 `json:"token"`
	Expires int64  `json:"expires"`
	TTL     int64  `json:"ttl,omitempty"`
}

type taken struct {
	Token uint64 `json:"token"`
	Until int64  `json:"until"`
}

func encode(c content) string {
	if c.Holders == nil {
		c.Holders = []holder{}
	}
	b, err := json.Marshal(c)
	if err != nil {
		panic(err)
	}
	return string(b)
}

func decode(state string) (c content, err error) {
	err = json.Unmarshal([]byte(state), &c)
	return c, err
}

func (c content) byID(id string) *holder {
	for i := range c.Holders {
		if c.Holders[i].ID == id {
			return &c.Holders[i]
		}
	}
	return nil
}

// change changes the content of a row, as another client does.
func (s *rowServer) change(name string, change func(*content)) {
	r := s.rows["\x00"+name]
	c, err := decode(r.state)
	if err != nil {
		panic(err)
	}
	change(&c)
	r.version, r.state = r.version+1, encode(c)
}

// held returns an engine, a server, and n grants whose rows the server has.
func held(t *testing.T, n int, name func(i int) string) (*record.Engine, *rowServer, []driver.Grant) {
	s := &rowServer{rows: map[string]*fakeRow{}}
	o := NewOptimistic(NewPool(Idle{Min: 1, Max: 1}, func(context.Context) (Link, error) { return s, nil }), rowTable{}, rowFaults{}, nil,
		func() time.Duration { return 0 }, "")
	t.Cleanup(func() { _ = o.Close(context.Background()) })
	var grants []driver.Grant
	for i := range n {
		g := driver.Grant{ID: fmt.Sprint("id-", i), Name: name(i), Limit: driver.Unlimited, Token: uint64(i + 1), TTL: time.Minute}
		grants = append(grants, g)
		if s.rows["\x00"+g.Name] == nil {
			s.rows["\x00"+g.Name] = &fakeRow{version: 1, token: int64(n), state: encode(content{})}
		}
		s.change(g.Name, func(c *content) {
			c.Holders = append(c.Holders, holder{ID: g.ID, Limit: g.Limit, Slot: driver.NoSlot, Token: g.Token,
				Expires: time.Now().Add(time.Hour).UnixMicro(), TTL: g.TTL.Microseconds()})
		})
	}
	return o, s, grants
}

func own(i int) string { return fmt.Sprint("n", i) }

// renewed requires that a grant was renewed: its row has the new expiry time, counted from a time after SentAt.
func (s *rowServer) renewed(t *testing.T, g driver.Grant, a driver.Renewal) {
	t.Helper()
	if a.Err != nil || a.TTL != g.TTL {
		t.Errorf("the answer for %s is %+v", g.Name, a)
		return
	}
	c, err := decode(s.rows["\x00"+g.Name].state)
	must.Succeed(t, err)
	h := c.byID(g.ID)
	if h == nil || h.Expires-g.TTL.Microseconds() < a.SentAt.Time().UnixMicro() || h.Expires > time.Now().Add(g.TTL).UnixMicro() {
		t.Errorf("the row of %s has %+v for a renewal that was sent at %d", g.Name, h, a.SentAt.Time().UnixMicro())
	}
}

// TestRenewalTakesFewStatements: three statements renew many grants of different names. One write of a
// row renews all grants of one name.
func TestRenewalTakesFewStatements(t *testing.T) {
	for kind, name := range map[string]func(int) string{"own names": own, "one name": func(int) string { return "same" }} {
		t.Run(kind, func(t *testing.T) {
			const n = 320
			o, s, grants := held(t, n, name)
			for i, a := range o.Renew(t.Context(), grants) {
				s.renewed(t, grants[i], a)
			}
			if s.statements > n/10 {
				t.Errorf("%d statements for %d grants", s.statements, n)
			}
		})
	}
}

// TestRenewalWritesLargeRowsApart: if rows have many holders, the client sends several
// statements, none of which exceeds a limit.
func TestRenewalWritesLargeRowsApart(t *testing.T) {
	o, s, grants := held(t, 20, own)
	for _, g := range grants {
		s.change(g.Name, func(c *content) {
			for len(encode(*c)) < togetherBytes/3 {
				c.Holders = append(c.Holders, holder{ID: "other", Reason: strings.Repeat("x", 20000), Limit: driver.Unlimited, Expires: 1 << 52})
			}
		})
	}
	for i, a := range o.Renew(t.Context(), grants) {
		s.renewed(t, grants[i], a)
	}
	for _, statement := range s.sent {
		if len(statement) > 2*togetherBytes {
			t.Errorf("a statement has %d bytes", len(statement))
		}
	}
}

// TestRenewalJudgesEachRow: other clients change some rows between the read and the write. These rows
// keep the changes, and the renewal of all other rows succeeds.
func TestRenewalJudgesEachRow(t *testing.T) {
	o, s, grants := held(t, 20, own)
	s.before = func(script string) error {
		if !strings.HasPrefix(script, "write") {
			return nil
		}
		s.before = nil
		s.change("n1", func(c *content) {
			c.Holders = append(c.Holders, holder{ID: "other", Limit: driver.Unlimited, Token: 77, Expires: 1 << 52})
		})
		s.change("n2", func(c *content) { *c = content{Taken: []taken{{Token: grants[2].Token, Until: 1 << 52}}} })
		s.change("n3", func(c *content) { c.Holders[0].Token++ })
		delete(s.rows, "\x00n4")
		return nil
	}
	answers := o.Renew(t.Context(), grants)
	for i, want := range map[int]driver.Cause{2: driver.CauseTaken, 3: driver.CauseGone, 4: driver.CauseGone} {
		if a := answers[i]; driver.CodeOf(a.Err) != driver.CodeNotHeld || a.Cause != want {
			t.Errorf("the answer for n%d is %+v, want not held: %s", i, a, want)
		}
	}
	for i, a := range answers {
		if i < 2 || i > 4 {
			s.renewed(t, grants[i], a)
		}
	}
	if c, err := decode(s.rows["\x00n1"].state); err != nil || c.byID("other") == nil {
		t.Errorf("the grant of another client is gone: %+v, %v", c, err)
	}
}

// TestRenewalAfterFault: the server refuses a script, does not get it, or executes it without an
// answer. The client reads the rows, and the renewal continues from them.
func TestRenewalAfterFault(t *testing.T) {
	write := func(script string) bool { return strings.HasPrefix(script, "write") }
	failing := func(left int, err error) func(script string) error { // the first writes fail
		return func(script string) error {
			if !write(script) || left == 0 {
				return nil
			}
			left--
			return err
		}
	}
	for name, fault := range map[string]func(s *rowServer){
		"deadlocks": func(s *rowServer) { s.before = failing(3, errDeadlock) },
		"a locked row": func(s *rowServer) {
			left := 20
			s.before = func(script string) error {
				if write(script) && strings.Contains(script, `"Name":"AG43"`) && left > 0 { // n7
					left--
					for name, r := range s.rows {
						if strings.HasPrefix(script, "write-one") && name != "\x00n7" && r.version == 2 {
							t.Errorf("a statement waits for the row before %q is renewed", name)
						}
					}
					return errDeadlock
				}
				return nil
			}
		},
		"the write is refused": func(s *rowServer) { s.before = failing(1, errBad) },
		"the write is lost":    func(s *rowServer) { s.before = failing(1, errNoAnswer) },
		"the answer is lost":   func(s *rowServer) { s.after = failing(1, errNoAnswer) },
	} {
		t.Run(name, func(t *testing.T) {
			o, s, grants := held(t, 20, own)
			fault(s)
			for i, a := range o.Renew(t.Context(), grants) {
				s.renewed(t, grants[i], a)
			}
			after := map[string]fakeRow{}
			for name, r := range s.rows {
				after[name] = *r
			}
			for _, statement := range slices.Clone(s.sent) { // the statement arrives a second time, late
				s.write(statement)
			}
			for name, r := range s.rows {
				if after[name] != *r {
					t.Errorf("a late statement changed %q", name)
				}
			}
		})
	}
}

// TestLateRenewalRevivesNothing: the statement that renews grants reaches the server when they have expired,
// and no other client has changed their rows. The rows stay as they are.
func TestLateRenewalRevivesNothing(t *testing.T) {
	for _, n := range []int{1, 20} {
		synctest.Test(t, func(t *testing.T) {
			o, s, grants := held(t, n, own)
			for _, g := range grants {
				s.change(g.Name, func(c *content) { c.Holders[0].Expires = time.Now().Add(time.Second).UnixMicro() })
			}
			s.before = func(script string) error {
				if strings.HasPrefix(script, "write") {
					time.Sleep(2 * time.Second)
				}
				return nil
			}
			for i, a := range o.Renew(t.Context(), grants) {
				if driver.CodeOf(a.Err) != driver.CodeNotHeld || s.rows["\x00"+grants[i].Name].version != 3 {
					t.Errorf("%s was renewed after it had expired: %+v", grants[i].Name, a)
				}
			}
		})
	}
}

// TestLockedRowDelaysNoOther: a row that another transaction has locked for a while is renewed as soon as it
// is free, although a row before it stays locked.
func TestLockedRowDelaysNoOther(t *testing.T) {
	o, s, grants := held(t, 20, own)
	tries := 0
	s.locked = func(name string) bool {
		switch name {
		case "\x00n3": // until n7 is renewed
			return s.rows["\x00n7"].version == 2 // the version that held has made
		case "\x00n7":
			tries++
			return tries < 12
		}
		return false
	}
	for i, a := range o.Renew(t.Context(), grants) {
		s.renewed(t, grants[i], a)
	}
}

// TestRenewalOutcome: the outcome of a write is unknown if there is no answer, or if the server has
// become read-only. The outcome of a read is certain.
func TestRenewalOutcome(t *testing.T) {
	for name, c := range map[string]struct {
		at   string // the beginning of the first script that fails; all later ones fail too
		late bool   // the server executes the script
		want driver.Code
	}{
		"no answer to the read":  {"find", false, driver.CodeUnavailable},
		"no answer to the write": {"write", true, driver.CodeUnknown},
	} {
		t.Run(name, func(t *testing.T) {
			o, s, grants := held(t, 20, own)
			failing := false
			fail := func(script string) error {
				if failing = failing || strings.HasPrefix(script, c.at); failing {
					return errNoAnswer
				}
				return nil
			}
			if c.late {
				s.after = fail
			} else {
				s.before = fail
			}
			for _, a := range o.Renew(t.Context(), grants) {
				if driver.CodeOf(a.Err) != c.want || !errors.Is(a.Err, errNoAnswer) {
					t.Fatalf("%v (%v), want %v", a.Err, driver.CodeOf(a.Err), c.want)
				}
			}
		})
	}
	t.Run("read-only after the write", func(t *testing.T) {
		o, s, grants := held(t, 20, own)
		s.before = func(script string) error {
			s.readOnly = s.readOnly || strings.HasPrefix(script, "write")
			return nil
		}
		for _, a := range o.Renew(t.Context(), grants) {
			if driver.CodeOf(a.Err) != driver.CodeUnknown || !errors.Is(a.Err, ErrReadOnly) {
				t.Fatalf("%v (%v), want an unknown outcome", a.Err, driver.CodeOf(a.Err))
			}
		}
	})
}

// TestVersionIsNotReusedAfterFailover: a client has read a row that the promoted replica lacks. Its write does not
// replace the grant that another client has there.
func TestVersionIsNotReusedAfterFailover(t *testing.T) {
	e, s, _ := held(t, 0, own)
	replica := fakeRow{version: 5, state: encode(content{})}
	row := replica
	s.rows["\x00n"] = &row
	request := func(id string) driver.Request {
		return driver.Request{ID: id, Name: "n", Limit: driver.Exclusive, TTL: time.Minute, From: noRequester{}}
	}
	must.Succeed(t, e.Undo(t.Context(), request("x"))) // a write that is not replicated
	s.before = func(script string) error {
		if strings.HasPrefix(script, "write") {
			s.before = nil
			s.mu.Unlock()
			defer s.mu.Lock()
			s.rows["\x00n"] = &replica
			_, err := e.Acquire(t.Context(), request("d"))
			must.Report(t, err)
		}
		return nil
	}
	if _, err := e.Acquire(t.Context(), request("c")); driver.CodeOf(err) != driver.CodeBusy {
		t.Errorf("Acquire returns %v, want busy", err)
	}
}
