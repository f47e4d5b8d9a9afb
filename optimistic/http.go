package optimistic

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/conditional"
)

// HTTP keeps values in an object store, one object each, by conditional requests: GET reads
// an object and its ETag, PUT writes it with If-Match, or with If-None-Match: * if it must
// not exist. S3 and the stores that are compatible with it do that, and so does WebDAV on
// several servers.
//
//	values := optimistic.HTTP{URL: "https://bucket.s3.eu-central-1.amazonaws.com/state", Client: signing}
//
// Module s3store keeps values in S3, too: it signs its requests, and probes the server with several writers.
//
// The server must compare and write in one atomic step, and return a strong ETag for a GET
// and a PUT. The first Put that succeeds proves the comparison: it repeats the PUT under two
// conditions that do not hold. If the server writes nevertheless, the error wraps
// holdfast.ErrUnsupported. HTTP follows no redirect, because the response of another URL does not
// confirm the write.
//
// S3's ETag is a hash of the content: a value that was changed and changed back
// has its old version again. Updates of the value are still correct, because they depend
// only on the content. A guard needs more, and fence.Objects adds it.
//
// # Proxies that repeat a PUT
//
// A proxy may repeat a PUT whose answer it has missed. The server then responds with 412, although
// it has written. Therefore HTTP sends the ids of the last 32 writes as x-amz-meta-holdfast-writes, which S3 keeps
// and returns. After each 412 it reads the object, and finds out whether its own write was done.
// On a server that keeps no such metadata, a conflict with an equal value is [ErrUnknown]. If
// another write with another value has followed, the 412 counts as [ErrConflict], and Update would apply its function
// again. With such a server, let no proxy repeat a PUT (nginx: proxy_next_upstream off).
type HTTP struct {
	// URL is the URL of the objects' parent. HTTP escapes a key and appends it after a slash. A key
	// must have no part "." or ".." between slashes, because servers resolve it. Required, http or https.
	URL string
	// Client sends the requests. It signs them, if the server requires that, by its
	// Transport. It must not repeat a PUT that may have been done, and its CheckRedirect is not used.
	// net/http does not repeat one. Keep one client for each server: the process remembers each URL and client for
	// which the server was proven to compare versions. Default: http.DefaultClient.
	Client *http.Client
}

var _ Values = HTTP{}

const (
	// writesHeader carries the ids of the last writes of an object, the newest first.
	writesHeader = "X-Amz-Meta-Holdfast-Writes"
	writeIDs     = 32
	writeIDLen   = 12
)

// proven contains each HTTP whose server compares versions, and whether it keeps the ids of writes.
var proven sync.Map

// Get implements [Values].
func (h HTTP) Get(ctx context.Context, key string) ([]byte, string, error) {
	client, err := h.client(ctx, key, nil)
	if err != nil {
		return nil, "", err
	}
	o, err := conditional.Get(ctx, client, h.at(key), driver.MaxValue)
	if err != nil || o.ETag == "" {
		return nil, "", err
	}
	if len(o.Data) > driver.MaxValue {
		return nil, "", driver.Errorf(driver.CodeInvalid, "%s has more than %d bytes", h.at(key), driver.MaxValue)
	}
	version := o.ETag
	if writes := o.Header.Get(writesHeader); writes != "" {
		version += " " + writes
	}
	return o.Data, version, nil
}

// Put implements [Values].
func (h HTTP) Put(ctx context.Context, key string, data []byte, version string) (string, error) {
	match, earlier, _ := strings.Cut(version, " ") // an ETag has no space
	id := rand.Text()[:writeIDLen]
	writes := id
	if earlier != "" {
		writes += "," + earlier[:min(len(earlier), (writeIDs-1)*(writeIDLen+1)-1)]
	}
	header := http.Header{"If-Match": {match}, writesHeader: {writes}}
	if version == "" {
		header = http.Header{"If-None-Match": {"*"}, writesHeader: {writes}}
	}
	client, err := h.client(ctx, key, data)
	if err != nil {
		return "", err
	}
	tag, err := conditional.Put(ctx, client, h.at(key), data, header)
	if driver.CodeOf(err) == driver.CodeConflict {
		tag, writes, err = h.afterConflict(ctx, key, data, id, driver.Conflict(key))
	}
	if err != nil {
		return "", err
	}
	keeps, err := h.prove(ctx, client, key, data, writes)
	if keeps {
		tag += " " + writes
	}
	return tag, err
}

// afterConflict finds out whether the write id was done although the server reports a conflict: a
// proxy may have repeated the request. It returns the parts of the version, or conflict if
// another client has written instead.
func (h HTTP) afterConflict(ctx context.Context, key string, data []byte, id string, conflict error) (tag, writes string, err error) {
	present, version, err := h.Get(ctx, key)
	if err != nil {
		return "", "", driver.Errorf(driver.CodeUnknown, "the server reports a conflict, and the object cannot be read: %w", err)
	}
	tag, writes, _ = strings.Cut(version, " ")
	switch at := slices.Index(strings.Split(writes, ","), id); {
	case at == 0:
		return tag, writes, nil
	case at > 0: // other writes have followed: no object has this version
		return `"replaced-` + id + `"`, writes, nil
	case version != "" && writes == "" && bytes.Equal(present, data):
		return "", "", driver.Errorf(driver.CodeUnknown, "%s: the server reports a conflict, and the object has the value of this write", h.at(key))
	}
	return "", "", conflict
}

// prove checks, once for each server, that it refuses a PUT whose condition does not hold. The
// object exists, so neither condition holds, and a PUT of the same data does the least harm.
// It reports whether the server keeps the ids of the writes.
func (h HTTP) prove(ctx context.Context, client *http.Client, key string, data []byte, writes string) (keeps bool, err error) {
	if kept, ok := proven.Load(h); ok {
		return kept.(bool), nil
	}
	err = conditional.Compare(ctx, client, h.at(key), data, http.Header{writesHeader: {writes}})
	if driver.CodeOf(err) == driver.CodeUnsupported {
		return false, err
	} else if err != nil {
		return false, driver.Errorf(driver.CodeUnknown, "the object was written, but the server is not proven to compare versions: %w", err)
	}
	_, version, err := h.Get(ctx, key)
	if err != nil {
		return false, driver.Errorf(driver.CodeUnknown, "the object was written, but cannot be read: %w", err)
	}
	keeps = strings.Contains(version, " ")
	proven.Store(h, keeps)
	return keeps, nil
}

// client returns the client of a request, or an error if the request is not allowed.
func (h HTTP) client(ctx context.Context, key string, data []byte) (*http.Client, error) {
	if err := driver.CheckValue(key, data); err != nil {
		return nil, err
	}
	for part := range strings.SplitSeq(key, "/") {
		if part == "." || part == ".." {
			return nil, driver.Errorf(driver.CodeInvalid, "optimistic.HTTP: key %q: the part %q is not allowed", key, part)
		}
	}
	if u, err := url.Parse(h.URL); err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return nil, driver.Errorf(driver.CodeInvalid, "optimistic.HTTP: URL: want http://HOST/PATH or https://HOST/PATH")
	}
	if err := ctx.Err(); err != nil {
		return nil, driver.Errorf(driver.CodeUnavailable, "%w", err)
	}
	return cmp.Or(h.Client, http.DefaultClient), nil
}

// at returns the URL of an object.
func (h HTTP) at(key string) string {
	return strings.TrimSuffix(h.URL, "/") + "/" + url.PathEscape(key)
}
