package etcdstore

import (
	"context"
	"errors"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/holdfast-go/holdfast/driver"
)

// Classify tells what an error of this store means. An error that etcd or the
// network answered to a transaction is Unknown unless it is known to have been
// raised before anything was applied.
func (s *Store) Classify(err error) driver.Code {
	if c := driver.CodeOf(err); c != driver.CodeUnknown {
		return c
	}
	return refused(err)
}

// refused finds the answered noes; Unknown for everything else.
func refused(err error) driver.Code {
	var own *driver.Error
	if errors.As(err, &own) {
		return own.Code
	}
	if errors.Is(err, rpctypes.ErrTooManyRequests) {
		return driver.CodeUnavailable // counted before it is proposed
	}
	code := codes.Unknown
	var e rpctypes.EtcdError
	if errors.As(rpctypes.Error(err), &e) {
		code = e.Code()
		if code == codes.ResourceExhausted { // no space
			return driver.CodeRefused
		}
	} else if st, ok := status.FromError(err); ok {
		code = st.Code()
	}
	switch code {
	case codes.PermissionDenied, codes.Unauthenticated, codes.InvalidArgument, codes.Unimplemented:
		return driver.CodeRefused
	}
	// ResourceExhausted in words that are not etcd's may be this client's own, of an
	// answer that is too large: what was asked for has been done.
	return driver.CodeUnknown
}

// certain is the code of an error of a request that changes nothing, or nothing
// that anyone has to undo.
func certain(err error) driver.Code {
	if c := refused(err); c != driver.CodeUnknown {
		return c
	}
	return driver.CodeUnavailable
}

// unavailable is for requests that only read, or that are safe to be lost. As for
// unknown, the reason of a context that has ended comes first: a server may answer
// in words of its own that the deadline has passed.
func unavailable(ctx context.Context, err error) error {
	late(ctx, err)
	code := certain(err)
	if ctx.Err() != nil {
		err = errors.Join(context.Cause(ctx), err)
	}
	return &driver.Error{Code: code, Err: err}
}

// unknown is for a transaction whose answer did not come. Where the caller's
// context has ended, its reason tells more than the client's words.
func unknown(ctx context.Context, err error) error {
	late(ctx, err)
	code := refused(err) // not of the context's reason, which may be an error of any code
	if ctx.Err() != nil {
		err = errors.Join(context.Cause(ctx), err)
	}
	return &driver.Error{Code: code, Err: err}
}

// late waits for the end of a context whose deadline has passed at the server: it
// is told to the server, which may answer by its own clock a little before the
// context has ended here.
func late(ctx context.Context, err error) {
	if _, ok := ctx.Deadline(); ok && status.Convert(err).Message() == context.DeadlineExceeded.Error() {
		<-ctx.Done()
	}
}
