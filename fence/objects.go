package fence

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"strconv"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/backoff"
)

// Objects guards objects that are written whole and only at a version: objects of an object
// store with conditional writes, such as S3, or the values of any holdfast store.
//
//	guard := fence.Objects{Values: optimistic.HTTP{URL: "https://bucket.s3.amazonaws.com/state"}}
//	err := guard.Write(ctx, "report.json", lock.Token(), report)
//
// The token is the first line of the object, so that one conditional write replaces token and
// content together. S3 computes ETags from the content: with that line, equal contents under
// different tokens have different ETags. Readers use [Objects.Read], or skip the first line. A
// resource is the key of an object. Content has at most 511 KiB.
//
// A write is two round trips, and two more after each conflict with another write.
type Objects struct {
	// Values keeps the objects. Required. Its versions must differ if the contents differ.
	Values driver.Values
}

var _ Guard[[]byte] = Objects{}

const objectHead = "holdfast-fence 1 "

// maxContent leaves room for the head.
const maxContent = driver.MaxValue - 1<<10

// Write implements [Guard]: it replaces the content. Errors wrap [ErrStale],
// [ErrInvalid], [ErrUnavailable] or [ErrCorrupt].
func (o Objects) Write(ctx context.Context, resource string, token uint64, content []byte) error {
	if len(content) > maxContent {
		return fmt.Errorf("%w: %q: %d bytes, want at most %d", ErrInvalid, resource, len(content), maxContent)
	}
	return o.put(ctx, resource, token, func(object) ([]byte, error) { return content, nil })
}

// Raise implements [Guard]: it writes the same content under the token. An object that does
// not exist has no token that could be raised: the error wraps [ErrNotExist].
func (o Objects) Raise(ctx context.Context, resource string, token uint64) error {
	return o.put(ctx, resource, token, func(is object) ([]byte, error) {
		if is.version == "" {
			return nil, fmt.Errorf("%w: %q", ErrNotExist, resource)
		}
		return is.content, nil
	})
}

// Newest implements [Guard].
func (o Objects) Newest(ctx context.Context, resource string) (uint64, error) {
	is, err := o.get(ctx, resource, 1)
	return is.token, err
}

// Read returns the content of an object, and the token of its last write. An object that
// does not exist has no content and the token 0.
func (o Objects) Read(ctx context.Context, resource string) (content []byte, token uint64, err error) {
	is, err := o.get(ctx, resource, 1)
	return is.content, is.token, err
}

type object struct {
	content []byte
	token   uint64
	version string
}

func (o Objects) put(ctx context.Context, resource string, token uint64, content func(object) ([]byte, error)) error {
	for n := 0; ; n++ {
		is, err := o.get(ctx, resource, token)
		if err != nil {
			return err
		}
		if token < is.token {
			return &StaleError{Resource: resource, Token: token, Newest: is.token}
		}
		data, err := content(is)
		if err != nil {
			return err
		}
		_, err = o.Values.Put(ctx, resource, append([]byte(objectHead+strconv.FormatUint(token, 10)+"\n"), data...), is.version)
		switch code := driver.CodeOf(err); {
		case err == nil:
			return nil
		case code == driver.CodeUnknown:
			return fmt.Errorf("%w: %q: it may have been written: %w", ErrUnavailable, resource, err)
		case code != driver.CodeConflict:
			return fmt.Errorf("%w: %q: %w", ErrUnavailable, resource, err)
		}
		// Another write came between. The next attempt compares the tokens again.
		_ = backoff.Sleep(ctx, rand.N(time.Millisecond<<min(n, 6)))
	}
}

func (o Objects) get(ctx context.Context, resource string, token uint64) (object, error) {
	if o.Values == nil {
		return object{}, fmt.Errorf("%w: Objects.Values is nil", ErrInvalid)
	}
	if err := CheckArguments(ctx, resource, token); err != nil {
		return object{}, err
	}
	data, version, err := o.Values.Get(ctx, resource)
	if err != nil {
		return object{}, fmt.Errorf("%w: %q: %w", ErrUnavailable, resource, err)
	}
	if version == "" {
		return object{}, nil
	}
	head, content, ok := bytes.Cut(data, []byte("\n"))
	head, ok2 := bytes.CutPrefix(head, []byte(objectHead))
	if !ok || !ok2 {
		return object{}, fmt.Errorf("%w: the object %q does not begin with a token", ErrCorrupt, resource)
	}
	newest, err := Parse(string(head))
	if err != nil {
		return object{}, fmt.Errorf("%w: the object %q: %w", ErrCorrupt, resource, err)
	}
	return object{content, newest, version}, nil
}
