package driver

import (
	"context"
	"maps"
	"net/url"
	"slices"
	"sync"
)

// Opener opens a store by URL. The namespace is given apart from the URL and is
// valid: empty, or a name of at most 128 bytes.
//
// An unreachable server is no error: the opener returns a store whose calls return
// CodeUnavailable until the server is up. So a program may start before its server, or during a
// failover. The opener returns an error for a fault that does not end by itself: a malformed
// URL, a missing file, rights that the server refuses.
type Opener func(ctx context.Context, u *url.URL, namespace string) (Store, error)

// The schemes are the only global state, as in database/sql.
var (
	openersMu sync.RWMutex
	openers   = map[string]Opener{}
)

// Register makes a store available under a URL scheme. A store calls it in its init. It panics if
// the scheme is taken.
func Register(scheme string, open Opener) {
	openersMu.Lock()
	defer openersMu.Unlock()
	if open == nil {
		panic("holdfast/driver: Register of scheme " + scheme + " without an opener")
	}
	if _, taken := openers[scheme]; taken {
		panic("holdfast/driver: scheme " + scheme + " registered twice")
	}
	openers[scheme] = open
}

// OpenerOf returns the opener of a scheme.
func OpenerOf(scheme string) (Opener, bool) {
	openersMu.RLock()
	defer openersMu.RUnlock()
	open, ok := openers[scheme]
	return open, ok
}

// Schemes returns the registered schemes, sorted.
func Schemes() []string {
	openersMu.RLock()
	defer openersMu.RUnlock()
	return slices.Sorted(maps.Keys(openers))
}
