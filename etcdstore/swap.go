package etcdstore

import (
	"context"
	"errors"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/holdfast-go/holdfast/driver"
)

var _ driver.Swapper = (*store)(nil)

// release is the release of a grant in the transaction of another request.
type release struct {
	a        *request // the grant's
	g        driver.Grant
	released func(error)
	reported bool // released was called
}

// Swap implements driver.Swapper: one transaction deletes the entry of old and creates that of r.
func (s *store) Swap(ctx context.Context, old driver.Grant, r driver.Request, released func(error)) (driver.Grant, error) {
	if s.calls.Stopped() {
		return driver.Grant{}, errClosed
	}
	a := s.requestOf(old)
	if a == nil {
		released(errNotHeld)
		return s.acquire(ctx, r, nil)
	}
	return s.acquire(ctx, r, &release{a: a, g: old, released: released})
}

// report reports the outcome of the release.
func (o *release) report(err error) {
	o.reported = true
	o.released(err)
}

// releaseAlone carries out a release in a transaction of its own.
func (s *store) releaseAlone(ctx context.Context, o *release) error {
	_, err := limited(ctx, func(ctx context.Context) (struct{}, error) { return struct{}{}, s.Release(ctx, o.g, 0) })
	return err
}

// op returns the operation that deletes the entry if it is still the one that was granted.
func (o *release) op() clientv3.Op {
	o.a.granted.Store(false) // from here on a deletion is no loss
	same := clientv3.Compare(clientv3.CreateRevision(o.a.key), "=", o.a.rev.Load())
	return clientv3.OpTxn([]clientv3.Cmp{same}, []clientv3.Op{clientv3.OpDelete(o.a.key)}, nil)
}

// reportRelease reports the outcome of a release, from the answer to its transaction. It reports
// nothing if the transaction was not applied: then the grant still has to be released alone.
func (s *store) reportRelease(ctx context.Context, o *release, resp *clientv3.TxnResponse, err error) {
	switch {
	case err == nil:
		s.forget(o.a)
		if !resp.Responses[0].GetResponseTxn().Succeeded {
			err = errNotHeld
		}
	case errors.Is(err, rpctypes.ErrLeaseNotFound):
		return
	case errors.Is(err, rpctypes.ErrNoSpace):
		// The server applies the transaction that fills the space.
		if err = s.releaseAlone(ctx, o); err == errNotHeld {
			err = nil
		}
	case codeOf(err) != driver.CodeUnknown:
		return
	default:
		err = unknown(ctx, err)
	}
	o.report(err)
}
