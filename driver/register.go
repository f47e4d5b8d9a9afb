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
// A server that does not answer is no error of Open: it returns a store whose calls return
// errors of code CodeUnavailable until the server is there. A program that is started before its
// server, or while that fails over, then works as soon as it can. An error is for what does
// not change by itself: a URL that cannot be read, a file that is missing, rights that the
// server has refused.
type Opener func(ctx context.Context, u *url.URL, namespace string) (Store, error)

// The one global: schemes, as database/sql keeps its drivers.
var (
	openersMu sync.RWMutex
	openers   = map[string]Opener{}
)

// Register makes a store available under a URL scheme. It is called from a
// store's init and panics when the scheme is taken.
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

// OpenerOf finds the opener of a scheme.
func OpenerOf(scheme string) (Opener, bool) {
	openersMu.RLock()
	defer openersMu.RUnlock()
	open, ok := openers[scheme]
	return open, ok
}

// Schemes lists the registered schemes in order.
func Schemes() []string {
	openersMu.RLock()
	defer openersMu.RUnlock()
	return slices.Sorted(maps.Keys(openers))
}
