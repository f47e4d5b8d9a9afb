package s3store

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/xml"
	"iter"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/driver/record"
	"github.com/holdfast-go/holdfast/internal/conditional"
	"github.com/holdfast-go/holdfast/internal/contact"
	"github.com/holdfast-go/holdfast/internal/gather"
)

const (
	maxObject    = 8 << 20
	probeTimeout = time.Minute
	listTogether = 8 // reads of a list at the same time
	keyHeader    = "X-Amz-Meta-Holdfast-Key"
)

// bucket implements [record.Storage].
type bucket struct {
	client *http.Client
	root   string // the URL of the bucket, with a slash
	prefix string // of its objects, "" or with a slash
	skew   time.Duration

	reached contact.Contact

	ctx    context.Context // ends with Close
	end    context.CancelFunc
	probes *gather.Group[struct{}]
}

// verdicts has the result of the probe for each bucket and skew.
var verdicts sync.Map

type verdict struct{ err error }

// proved returns an error unless the server was proved to compare and write in one step, once for each process.
func (b *bucket) proved(ctx context.Context) error {
	v, ok := verdicts.Load(b.verdict())
	if !ok {
		_, err := b.probes.Do(ctx, "")
		v = verdict{err}
	}
	switch err := v.(verdict).err; {
	case err == nil:
		return nil
	case driver.CodeOf(err) == driver.CodeUnsupported:
		return driver.Errorf(driver.CodeRefused, "%s must not be used for locks: %w", b.root, err)
	case driver.CodeOf(err) == driver.CodeRefused:
		return err
	default:
		return driver.Errorf(driver.CodeUnavailable, "the probe of %s: %w", b.root, b.reached.Explain(err))
	}
}

func (b *bucket) verdict() string { return b.root + " " + b.skew.String() }

// probe proves the server, if no other store of the process has.
func (b *bucket) probe([]string) (none struct{}, err error) {
	if v, ok := verdicts.Load(b.verdict()); ok {
		return none, v.(verdict).err
	}
	ctx, end := context.WithTimeout(b.ctx, probeTimeout)
	defer end()
	err = conditional.Prove(ctx, b.client, b.root+b.prefix+"probe/"+rand.Text(), b.skew)
	if err == nil || driver.CodeOf(err) == driver.CodeUnsupported { // a second probe might not see what the first has seen
		verdicts.Store(b.verdict(), verdict{err})
	}
	return none, err
}

// Get implements [record.Storage].
func (b *bucket) Get(ctx context.Context, key string) (record.Object, error) {
	if err := b.proved(ctx); err != nil {
		return record.Object{}, err
	}
	_, o, err := b.read(ctx, leaf(key))
	return o, err
}

// read reads the object of a leaf, and its key.
func (b *bucket) read(ctx context.Context, leaf string) (key string, r record.Object, err error) {
	o, err := conditional.Get(ctx, b.client, b.root+b.prefix+leaf, maxObject)
	if err != nil {
		return "", r, err
	}
	r.Now, _ = http.ParseTime(o.Header.Get("Date")) // the engine refuses a missing time
	r.Written = r.Now
	if o.ETag != "" {
		r.Data, r.Version = o.Data, o.ETag
		r.Written, err = http.ParseTime(o.Header.Get("Last-Modified"))
	}
	switch {
	case err != nil:
		err = driver.Errorf(driver.CodeRefused, "%s: the answer has no Last-Modified: %w", leaf, err)
	case o.Header.Get("Age") != "":
		err = driver.Errorf(driver.CodeRefused, "%s: a cache has answered a read", leaf)
	case len(o.Data) > maxObject:
		err = driver.Errorf(driver.CodeRefused, "%s has more than %d bytes", leaf, maxObject)
	}
	return keyOf(leaf, o.Header), r, err
}

// tag is an ETag. The client library of a server knows no other version.
var tag = regexp.MustCompile(`^"[!#-~]+"$`)

// Put implements [record.Storage].
func (b *bucket) Put(ctx context.Context, key string, data []byte, version string) (string, error) {
	if err := b.proved(ctx); err != nil {
		return "", err
	}
	header := http.Header{"If-None-Match": {"*"}}
	if version != "" {
		header = http.Header{"If-Match": {version}}
		if !tag.MatchString(version) {
			return "", driver.Conflict(key)
		}
	}
	name := leaf(key)
	if strings.Contains(name, "~") {
		header[keyHeader] = []string{base64.URLEncoding.EncodeToString([]byte(key))}
	}
	return conditional.Put(ctx, b.client, b.root+b.prefix+name, data, header)
}

// List implements [record.Storage].
func (b *bucket) List(ctx context.Context, prefix string) iter.Seq2[record.Entry, error] {
	return func(yield func(record.Entry, error) bool) {
		err := b.proved(ctx)
		start := b.prefix + escape(prefix)
		start = start[:min(len(start), len(b.prefix)+readable)]
		query := url.Values{"list-type": {"2"}, "prefix": {start}}
		for more := true; more && err == nil; {
			var leaves []string
			if leaves, err = b.page(ctx, query); err != nil {
				break
			}
			more = query.Has("continuation-token")
			for some := range slices.Chunk(leaves, listTogether) {
				entries, errs := make([]record.Entry, len(some)), make([]error, len(some))
				var reads sync.WaitGroup
				for i, leaf := range some {
					reads.Go(func() { entries[i].Key, entries[i].Object, errs[i] = b.read(ctx, leaf) })
				}
				reads.Wait()
				for i, e := range entries {
					if errs[i] == nil && (e.Version == "" || !strings.HasPrefix(e.Key, prefix)) {
						continue
					}
					if !yield(e, errs[i]) || errs[i] != nil {
						return
					}
				}
			}
		}
		if err != nil {
			yield(record.Entry{}, err)
		}
	}
}

// page returns a page of leaves, and sets the token of the next one in query.
func (b *bucket) page(ctx context.Context, query url.Values) (leaves []string, err error) {
	at := b.root + "?" + strings.ReplaceAll(query.Encode(), "+", "%20")
	resp, err := conditional.Send(ctx, b.client, http.MethodGet, at, nil, nil)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, conditional.Refused(resp, driver.CodeUnavailable)
	}
	var page struct {
		Contents              []struct{ Key string }
		NextContinuationToken string
	}
	if err := xml.NewDecoder(resp.Body).Decode(&page); err != nil {
		return nil, driver.Errorf(driver.CodeUnavailable, "a list: %w", err)
	}
	query.Del("continuation-token")
	if page.NextContinuationToken != "" {
		query.Set("continuation-token", page.NextContinuationToken)
	}
	for _, c := range page.Contents {
		if leaf, ours := strings.CutPrefix(c.Key, b.prefix); ours && !strings.Contains(leaf, "/") {
			leaves = append(leaves, leaf)
		}
	}
	return leaves, nil
}

// Close implements [record.Storage].
func (b *bucket) Close() error {
	b.end()
	b.probes.Wait()
	b.client.CloseIdleConnections()
	return nil
}

const (
	readable = 128               // bytes of a long key that its leaf has
	longest  = readable + 1 + 64 // of a leaf
)

// escape returns a key in letters, digits, dots, hyphens and escapes such as _2F. The names of two keys never are one
// name, and none is a directory above another: a server may keep objects in files.
func escape(key string) string {
	return strings.NewReplacer("_", "_5F", "~", "_7E", "+", "_20", "%", "_").Replace(url.QueryEscape(key))
}

// leaf returns the last part of the name of an object. Of a long key it has the beginning and a hash, because the
// name of an object has at most 1024 bytes, and that of a file 255.
func leaf(key string) string {
	name := escape(key)
	if len(name) <= longest {
		return name
	}
	sum := sha256.Sum256([]byte(key))
	return name[:readable] + "~" + hex.EncodeToString(sum[:])
}

// keyOf returns the key of a leaf, or "" if no client has written the object.
func keyOf(name string, h http.Header) string {
	var key string
	if strings.Contains(name, "~") {
		text, _ := base64.URLEncoding.DecodeString(h.Get(keyHeader))
		key = string(text)
	} else {
		key, _ = url.QueryUnescape(strings.ReplaceAll(name, "_", "%"))
	}
	if leaf(key) != name {
		return ""
	}
	return key
}
