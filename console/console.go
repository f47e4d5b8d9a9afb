// Package console serves the locks of stores over HTTP: a page on which people see and break locks, and an API with
// which programs in any language hold them.
//
//	handler, err := console.Handler(ctx, map[string]*holdfast.Locker{"redis": locker}, console.Options{
//		Client: func(r *http.Request) (console.Client, bool) { ... },
//	})
//	mux.Handle("/locks/", http.StripPrefix("/locks", handler))
//
// The page is at the root of the handler, the API below v1/, and its OpenAPI document at v1/openapi.json. `holdfast
// serve` is this handler with a listener.
//
// # What a client may rely on
//
// A lock that a client holds through the handler is a lock of the handler's process, which renews it at the store. The
// link between the client and the handler is a second one that can fail. So each answer about a held lock has
// valid_seconds: the client may rely on the lock until that long after it has sent the request. The handler counts from
// when the request has arrived, which is later. So the client's deadline is never after the handler's own,
// however long the request, the wait or the answer took. A line of a stream is valid for at most 20 s: a server whose
// link is silent releases the lock later than that. See docs/guarantees.md.
package console

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/sequence"
)

// DefaultStreams is how many streams and grants a client may have at a time, unless Options sets another number.
const DefaultStreams = 256

// Options are the settings of a Handler.
type Options struct {
	// Client returns the sender of a request and its rights, or false to refuse the request. It must compare
	// secrets in constant time; see [ReadClients]. Default: every sender may see all locks, and may
	// neither lock nor break.
	Client func(*http.Request) (Client, bool)
	// Hosts are the host names, without port, that a request may name. A handler that trusts every process on
	// its machine lists its own names here. Otherwise a page of another site could reach it under a name of its
	// own. Default: every name.
	Hosts []string
	// Log gets a line for each break and each refused request. Default: [slog.Default].
	Log *slog.Logger
	// Metrics serves GET /metrics to the clients that Client accepts. Default: there is no such page. Metrics must
	// not have the names of locks, because each client sees them.
	Metrics http.Handler
	// Streams is how many streams and grants a client may have at a time, at least 1. Default [DefaultStreams].
	Streams int
}

// Client is the sender of a request. A right applies to the names that begin with one of its prefixes; "" is a
// prefix of all names.
type Client struct {
	// Name is for the audit log, and for the reasons of the client's locks. Grants belong to a name. An empty
	// name means that the client is known by its address only.
	Name string
	// See is the right to see locks and to read values.
	See []string
	// Lock is the right to lock names, and to write values, sequences and guards.
	Lock []string
	// Break is the right to break locks.
	Break []string
}

// Everything returns a client with all rights.
func Everything(name string) Client {
	all := []string{""}
	return Client{Name: name, See: all, Lock: all, Break: all}
}

type handler struct {
	ctx    context.Context
	boards map[string]*board
	o      Options
	mux    *http.ServeMux
	cross  *http.CrossOriginProtection

	mu        sync.Mutex
	streams   map[string]int    // by client
	grants    map[string]*grant // by ID
	sequences map[string]*sequence.Sequence
}

// Handler returns a handler over stores, by the names that clients give them. Until ctx ends, it watches each store.
// The end of ctx ends the streams and the locks that clients hold through the handler. Close the Lockers after
// that.
//
// The handler sets deadlines on its connections. It does not authenticate: Options.Client does.
func Handler(ctx context.Context, lockers map[string]*holdfast.Locker, o Options) (http.Handler, error) {
	if len(lockers) == 0 {
		return nil, fmt.Errorf("console: %w: no store is given", holdfast.ErrInvalid)
	}
	if o.Streams < 0 {
		return nil, fmt.Errorf("console: %w: Streams is %d: at least 1 is allowed", holdfast.ErrInvalid, o.Streams)
	}
	if o.Streams == 0 {
		o.Streams = DefaultStreams
	}
	if o.Log == nil {
		o.Log = slog.Default()
	}
	if o.Client == nil {
		o.Client = func(*http.Request) (Client, bool) { return Client{See: []string{""}}, true }
	}
	h := &handler{ctx: ctx, boards: map[string]*board{}, o: o, mux: http.NewServeMux(),
		cross: http.NewCrossOriginProtection(), streams: map[string]int{}, grants: map[string]*grant{},
		sequences: map[string]*sequence.Sequence{}}
	for name, l := range lockers {
		if l == nil {
			return nil, fmt.Errorf("console: %w: the Locker of %q is nil", holdfast.ErrInvalid, name)
		}
		h.boards[name] = newBoard(name, l)
	}
	for _, rt := range routes {
		h.mux.HandleFunc(rt.method+" "+rt.path, h.route(rt))
	}
	if o.Metrics != nil {
		h.mux.HandleFunc("GET /metrics", h.route(route{serve: (*call).metrics}))
	}
	for path, file := range map[string]string{"/{$}": "index.html", "/page.js": "page.js", "/page.css": "page.css"} {
		h.mux.HandleFunc("GET "+path, func(w http.ResponseWriter, r *http.Request) {
			http.ServeFileFS(w, r, files, "page/"+file)
		})
	}
	for _, b := range h.boards {
		go b.watch(ctx)
		go b.refresh(ctx)
	}
	context.AfterFunc(ctx, h.endAll)
	return h, nil
}

//go:embed page
var files embed.FS

// policy lets the page load its own files only.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; base-uri 'none'; " +
	"form-action 'none'; frame-ancestors 'none'"

func (h *handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	head := w.Header()
	head.Set("Content-Security-Policy", policy)
	head.Set("X-Content-Type-Options", "nosniff")
	head.Set("Referrer-Policy", "no-referrer")
	head.Set("Cross-Origin-Resource-Policy", "same-origin")
	head.Set("Cache-Control", "no-store")
	c := &call{h: h, w: w, r: r}
	if err := h.checkOrigin(r); err != nil {
		c.fail(err)
		return
	}
	h.mux.ServeHTTP(w, r)
}

// checkOrigin refuses what a page of another site has sent, and requests under a foreign name for this host.
func (h *handler) checkOrigin(r *http.Request) error {
	host := r.Host
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	if host = strings.Trim(host, "[]"); len(h.o.Hosts) > 0 && !slices.Contains(h.o.Hosts, strings.ToLower(host)) {
		return refuse("host", "the request names another host")
	}
	foreign := refuse("origin", "the request comes from a page of another site")
	if origin := r.Header.Get("Origin"); origin != "" {
		if u, err := url.Parse(origin); err != nil || u.Host != r.Host {
			return foreign
		}
	}
	// Check lets another site read, which its page could not see; the API refuses that, too.
	if h.cross.Check(r) != nil || r.Header.Get("Sec-Fetch-Site") == "cross-site" && strings.HasPrefix(r.URL.Path, "/v1/") {
		return foreign
	}
	return nil
}

// route returns the handler of a route: it identifies the client and the store, and writes the error.
func (h *handler) route(rt route) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		c := &call{h: h, w: w, r: r, received: time.Now()}
		if err := c.begin(); err != nil {
			c.fail(err)
			return
		}
		if err := rt.serve(c); err != nil {
			c.fail(err)
		}
	}
}

func (c *call) metrics() error {
	c.deadline()
	c.h.o.Metrics.ServeHTTP(c.w, c.r)
	return nil
}

// begin identifies the client and the store of a request.
func (c *call) begin() error {
	var ok bool
	if c.client, ok = c.h.o.Client(c.r); !ok {
		c.w.Header().Set("WWW-Authenticate", "Bearer")
		return refuse("unauthorized", "no valid credentials are given")
	}
	name := c.r.URL.Query().Get("store")
	if name == "" && len(c.h.boards) == 1 {
		for only := range c.h.boards {
			name = only
		}
	}
	c.board = c.h.boards[name]
	if c.board == nil && name != "" {
		return invalid("store %q: give one of %q", name, c.h.names())
	}
	return nil
}

// names returns the names of the stores.
func (h *handler) names() []string { return slices.Sorted(maps.Keys(h.boards)) }

// may returns an error if the client has no right to a name.
func (c *call) may(right string, prefixes []string, name string) error {
	if allowed(prefixes, name) {
		return nil
	}
	return refuse("forbidden", "no right to %s %q", right, name)
}

func allowed(prefixes []string, name string) bool {
	return slices.ContainsFunc(prefixes, func(p string) bool { return strings.HasPrefix(name, p) })
}

// address returns the client's address without the port.
func (c *call) address() string {
	if host, _, err := net.SplitHostPort(c.r.RemoteAddr); err == nil {
		return host
	}
	return c.r.RemoteAddr
}

// key returns what identifies the client for limits and for the ownership of grants.
func (c *call) key() string {
	if c.client.Name != "" {
		return "name " + c.client.Name
	}
	return "address " + c.address()
}

// admit counts a stream or a grant of the client. The caller calls the returned function at its end.
func (c *call) admit() (func(), error) {
	h, key := c.h, c.key()
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.streams[key] >= h.o.Streams {
		return nil, refuse("limit", "the client has %d streams and grants, the most that are allowed", h.o.Streams)
	}
	h.streams[key]++
	return sync.OnceFunc(func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		if h.streams[key]--; h.streams[key] == 0 {
			delete(h.streams, key)
		}
	}), nil
}

// fail writes an error, unless the answer has begun, and logs a refusal.
func (c *call) fail(err error) {
	p := problemOf(err)
	switch p.status {
	case http.StatusUnauthorized, http.StatusForbidden, http.StatusTooManyRequests:
		c.h.o.Log.WarnContext(c.r.Context(), "holdfast: refused", "client", c.client.Name, "address", c.address(),
			"method", c.r.Method, "path", c.r.URL.Path, "code", p.Code, "error", p.Message)
	}
	if c.started || errors.Is(err, context.Canceled) && c.r.Context().Err() != nil {
		return
	}
	c.reply(p.status, answer{Error: p})
}
