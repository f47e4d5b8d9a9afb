package console

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"mime"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/fence"
	"github.com/holdfast-go/holdfast/internal/shape"
	"github.com/holdfast-go/holdfast/optimistic"
	"github.com/holdfast-go/holdfast/sequence"
)

const (
	// maxBody is the largest body of a request, other than one with a value.
	maxBody = 16 << 10
	// maxValueBody is the largest body with a value: base64 is longer by a third.
	maxValueBody = driver.MaxValue*4/3 + maxBody
	// bodyTimeout is the timeout of reading a body.
	bodyTimeout = 10 * time.Second
	// writeTimeout is the timeout of a write: a client that reads slower is cut.
	writeTimeout = 10 * time.Second
	// listTimeout is the timeout of one list.
	listTimeout = time.Minute
	// breakTimeout is for how long a break waits for a holder that has been notified.
	breakTimeout = 30 * time.Second
)

// route is one operation of the API. OpenAPI is made from it.
type route struct {
	method, path string
	doc          string
	query        []string // names of parameters, beside store
	in, out      any      // values of the bodies' types, nil for none
	stream       string   // the media type of a stream of values of out
	serve        func(*call) error
}

// routes are set in init, because the OpenAPI document, which is one of them, describes them.
var routes []route

func init() {
	routes = []route{
		{"GET", "/v1/openapi.json", "This document.", nil, nil, nil, "", (*call).openAPI},
		{"GET", "/v1/stores", "The stores, and what they guarantee.", nil, nil, storeList{}, "", (*call).stores},
		{"GET", "/v1/events", "The rows of the page, now and after each change; or one lock, with name.",
			[]string{"name", "prefix", "sort", "offset"}, nil, update{}, "text/event-stream", (*call).events},
		{"GET", "/v1/locks", "The locks that are held or awaited.",
			[]string{"prefix"}, nil, shape.List{}, "", (*call).list},
		{"GET", "/v1/locks/{name...}", "One lock.", nil, nil, shape.Lock{}, "", (*call).show},
		{"POST", "/v1/locks/{name...}", "Lock a name for as long as the answer, a stream of lines, is read.",
			nil, lockRequest{}, line{}, "application/x-ndjson", (*call).stream},
		{"POST", "/v1/grants/{name...}", "Lock a name without a stream, until the grant is released or not renewed.",
			nil, lockRequest{}, granted{}, "", (*call).acquire},
		{"POST", "/v1/renew/{id}", "Renew a grant. For the ID of a stream it returns the validity.",
			nil, nil, granted{}, "", (*call).renew},
		{"POST", "/v1/release/{id}", "Release a grant, or the lock of a stream.",
			nil, nil, done{}, "", (*call).release},
		{"POST", "/v1/break", "Take a lock away from the holder with a token.",
			nil, breakRequest{}, done{}, "", (*call).breakLock},
		{"POST", "/v1/guards/{name...}", "Check a fencing token, and raise the mark of the resource to it.",
			nil, guardRequest{}, done{}, "", (*call).guard},
		{"GET", "/v1/values/{name...}", "A value and its version.", nil, nil, value{}, "", (*call).getValue},
		{"PUT", "/v1/values/{name...}", "Write a value if its version is unchanged.",
			nil, value{}, value{}, "", (*call).putValue},
		{"POST", "/v1/sequences/{name...}", "Draw an id.", nil, nil, id{}, "", (*call).next},
	}
}

// call is one request.
type call struct {
	h        *handler
	w        http.ResponseWriter
	r        *http.Request
	received time.Time // when the handler has got the request
	client   Client
	board    *board // nil if the request names no store
	started  bool   // the answer has begun
}

type (
	// done is the body of an answer without content.
	done struct{}
	id   struct {
		ID string `json:"id"`
	}
	value struct {
		Data    []byte `json:"data"` // base64
		Version string `json:"version"`
	}
	breakRequest struct {
		Name   string `json:"name"`
		Token  string `json:"token"`
		Reason string `json:"reason"`
	}
	guardRequest struct {
		Token string `json:"token"`
	}
	storeList struct {
		Stores []storeInfo `json:"stores"`
	}
	storeInfo struct {
		Name       string       `json:"name"`
		Error      string       `json:"error,omitempty"`
		Kind       string       `json:"kind,omitempty"`
		Break      string       `json:"break,omitempty"` // none, notify, now
		Guarantees []driver.Row `json:"guarantees,omitempty"`
	}
)

// store returns the store of the request.
func (c *call) store() (*holdfast.Locker, error) {
	if c.board == nil {
		return nil, invalid("store is missing: give one of %q", c.h.names())
	}
	return c.board.locker, nil
}

// name returns the store and the name in the path, if the client has the right.
func (c *call) name(right string, prefixes []string) (*holdfast.Locker, string, error) {
	l, err := c.store()
	name := c.r.PathValue("name")
	if err == nil {
		err = c.may(right, prefixes, name)
	}
	return l, name, err
}

// decode reads the body, a JSON object without unknown fields. An empty body leaves v unchanged.
func (c *call) decode(v any, most int64) error {
	control := http.NewResponseController(c.w)
	_ = control.SetReadDeadline(time.Now().Add(bodyTimeout))
	body, err := io.ReadAll(http.MaxBytesReader(c.w, c.r.Body, most))
	// The deadline would otherwise end a stream that follows.
	_ = control.SetReadDeadline(time.Time{})
	if _, tooLarge := errors.AsType[*http.MaxBytesError](err); tooLarge {
		return refuse("too_large", "the body is longer than %d bytes", most)
	}
	if err != nil {
		return invalid("the body cannot be read: %v", err)
	}
	if len(body) == 0 {
		return nil
	}
	if media, _, _ := mime.ParseMediaType(c.r.Header.Get("Content-Type")); media != "application/json" {
		return refuse("media_type", "the body must have the type application/json")
	}
	return parse(body, v)
}

// parse decodes one JSON object.
func parse(body []byte, v any) error {
	d := json.NewDecoder(strings.NewReader(string(body)))
	d.DisallowUnknownFields()
	if err := d.Decode(v); err != nil {
		return invalid("the body: %v", err)
	}
	if _, err := d.Token(); err != io.EOF {
		return invalid("the body has more than one JSON object")
	}
	return nil
}

// reply writes a whole answer.
func (c *call) reply(status int, v any) {
	c.started = true
	c.w.Header().Set("Content-Type", "application/json")
	c.deadline()
	c.w.WriteHeader(status)
	_ = shape.JSON(c.w, v, true) // an error ends the connection
}

// deadline limits the next write. A handler under test may have no connection.
func (c *call) deadline() {
	_ = http.NewResponseController(c.w).SetWriteDeadline(time.Now().Add(writeTimeout))
}

// flush sends what was written. An HTTP/2 stream ends when its deadline passes, also if nothing is written then.
func (c *call) flush() error {
	control := http.NewResponseController(c.w)
	err := control.Flush()
	_ = control.SetWriteDeadline(time.Time{})
	return err
}

func (c *call) ok(v any) error {
	c.reply(http.StatusOK, v)
	return nil
}

func (c *call) stores() error {
	names := c.h.names()
	list := storeList{Stores: make([]storeInfo, len(names))}
	var all sync.WaitGroup
	for i, name := range names {
		s := &list.Stores[i]
		s.Name = name
		all.Go(func() {
			g, err := c.h.boards[name].locker.Guarantees(c.r.Context())
			if err != nil {
				s.Error = err.Error()
				return
			}
			s.Kind, s.Break, s.Guarantees = g.Kind, string(g.Break), g.Rows()
		})
	}
	all.Wait()
	return c.ok(list)
}

func (c *call) list() error {
	l, err := c.store()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(c.r.Context(), listTimeout)
	defer cancel()
	prefix := c.r.URL.Query().Get("prefix")
	all, err := shape.Collect(l.List(ctx, prefix))
	if err != nil {
		return err
	}
	all = slices.DeleteFunc(all, func(st holdfast.State) bool { return !allowed(c.client.See, st.Name) })
	return c.ok(shape.OfList(shape.Jobs(all, prefix), time.Now()))
}

func (c *call) show() error {
	l, name, err := c.name("see", c.client.See)
	if err != nil {
		return err
	}
	st, err := shape.Inspect(c.r.Context(), l, name)
	if err != nil {
		return err
	}
	shown := shape.Of(st, time.Now())
	shown.Deadlocks = c.visible(shape.Through(c.board.snapshot().cycles, st.Name))
	return c.ok(shown)
}

// visible returns the deadlocks whose names the client may see.
func (c *call) visible(cycles [][]shape.Wait) [][]shape.Wait {
	return slices.DeleteFunc(slices.Clone(cycles), func(cycle []shape.Wait) bool {
		return slices.ContainsFunc(cycle, func(w shape.Wait) bool { return !allowed(c.client.See, w.Name) })
	})
}

// breakLock ends a grant. Each attempt is logged, with its outcome.
func (c *call) breakLock() error {
	var in breakRequest
	l, err := c.store()
	if err == nil {
		err = c.decode(&in, maxBody)
	}
	if err != nil {
		return err
	}
	if err := c.may("break", c.client.Break, in.Name); err != nil {
		return err
	}
	token, err := strconv.ParseUint(in.Token, 10, 64)
	switch {
	case err != nil:
		return invalid("token %q: give the token that the lock shows, a whole number", in.Token)
	case strings.TrimSpace(in.Reason) == "" || len(in.Reason) > holdfast.MaxReason:
		return invalid("reason: give 1 to %d bytes", holdfast.MaxReason)
	}
	// The break continues after the client has left: it may have been sent to the holder already.
	ctx, cancel := context.WithTimeout(c.h.ctx, breakTimeout)
	defer cancel()
	err = l.Break(ctx, in.Name, token)
	outcome := "broken"
	if err != nil {
		outcome = err.Error()
	}
	c.h.o.Log.InfoContext(c.r.Context(), "holdfast: break", "client", c.client.Name, "address", c.address(),
		"store", c.board.name, "name", in.Name, "token", token, "reason", in.Reason, "outcome", outcome)
	if err != nil {
		return err
	}
	c.board.note(in.Name, eventTaken, strings.TrimSpace(c.client.Name+" "+c.address()+": "+in.Reason))
	return c.ok(done{})
}

func (c *call) values(right string, prefixes []string) (driver.Values, string, error) {
	l, name, err := c.name(right, prefixes)
	if err != nil {
		return nil, "", err
	}
	v, err := l.Values()
	return v, name, err
}

func (c *call) getValue() error {
	v, key, err := c.values("see", c.client.See)
	if err != nil {
		return err
	}
	data, version, err := optimistic.Get(c.r.Context(), v, key)
	if err != nil {
		return err
	}
	return c.ok(value{data, version})
}

func (c *call) putValue() error {
	v, key, err := c.values("lock", c.client.Lock)
	if err != nil {
		return err
	}
	var in value
	if err := c.decode(&in, maxValueBody); err != nil {
		return err
	}
	version, err := optimistic.Put(c.r.Context(), v, key, in.Data, in.Version)
	if err != nil {
		return err
	}
	return c.ok(value{in.Data, version})
}

// guard raises the mark of a resource, which is a value of the store in the form of [fence.Objects].
func (c *call) guard() error {
	v, resource, err := c.values("lock", c.client.Lock)
	if err != nil {
		return err
	}
	var in guardRequest
	if err := c.decode(&in, maxBody); err != nil {
		return err
	}
	token, err := strconv.ParseUint(in.Token, 10, 64)
	if err != nil {
		return invalid("token %q: give the token of the lock, a whole number", in.Token)
	}
	guard := fence.Objects{Values: v}
	if err = guard.Raise(c.r.Context(), resource, token); errors.Is(err, fence.ErrNotExist) {
		err = guard.Write(c.r.Context(), resource, token, nil)
	}
	if err != nil {
		return err
	}
	return c.ok(done{})
}

// maxSequences limits the sequences that are kept. Forgetting one leaves a gap in its ids.
const maxSequences = 1000

func (c *call) next() error {
	v, name, err := c.values("lock", c.client.Lock)
	if err != nil {
		return err
	}
	h, key := c.h, c.board.name+"\x00"+name
	h.mu.Lock()
	s := h.sequences[key]
	if s == nil {
		if s, err = sequence.New(sequence.Values(v), name); err == nil {
			if len(h.sequences) >= maxSequences {
				clear(h.sequences)
			}
			h.sequences[key] = s
		}
	}
	h.mu.Unlock()
	if err != nil {
		return err
	}
	n, err := s.Next(c.r.Context())
	if err != nil {
		return err
	}
	return c.ok(id{strconv.FormatInt(n, 10)})
}
