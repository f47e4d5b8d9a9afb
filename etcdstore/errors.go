package etcdstore

import (
	"context"
	"errors"
	"fmt"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/holdfast-go/holdfast/driver"
)

// Classify returns the code of an error. An error that etcd or the network has returned for a
// transaction is CodeUnknown, unless it is certain that nothing was applied.
func (s *Store) Classify(err error) driver.Code {
	if c := driver.CodeOf(err); c != driver.CodeUnknown {
		return c
	}
	return refused(err)
}

// refused returns the code of an error after which it is certain that nothing was applied. For any
// other error it returns CodeUnknown.
func refused(err error) driver.Code {
	var own *driver.Error
	if errors.As(err, &own) {
		return own.Code
	}
	if errors.Is(err, rpctypes.ErrTooManyRequests) {
		return driver.CodeUnavailable // checked before the request is proposed
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
	// ResourceExhausted without etcd's text may come from this client, for an answer that is too
	// large: the request has been applied.
	return driver.CodeUnknown
}

// certain returns the code of an error of a request that needs no undo.
func certain(err error) driver.Code {
	if c := refused(err); c != driver.CodeUnknown {
		return c
	}
	return driver.CodeUnavailable
}

// unavailable returns the error of a request that only reads, or that may be lost. If the context
// has ended, the error begins with its reason, as in unknown. A server may report a passed deadline
// by a text of its own.
func unavailable(ctx context.Context, err error) error {
	late(ctx, err)
	code := certain(err)
	if ctx.Err() != nil {
		err = errors.Join(context.Cause(ctx), err)
	}
	return &driver.Error{Code: code, Err: err}
}

// unknown returns the error of a transaction without an answer. If the caller's context has
// ended, the error begins with its reason.
func unknown(ctx context.Context, err error) error {
	late(ctx, err)
	code := refused(err) // without the context's reason, which may be an error of any code
	if ctx.Err() != nil {
		err = errors.Join(context.Cause(ctx), err)
	}
	return &driver.Error{Code: code, Err: err}
}

// late waits for the end of a context whose deadline has passed at the server. The server receives
// the deadline, and its clock may reach the deadline a little earlier.
func late(ctx context.Context, err error) {
	if _, ok := ctx.Deadline(); ok && status.Convert(err).Message() == context.DeadlineExceeded.Error() {
		<-ctx.Done()
	}
}

// limited limits one request to requestTimeout. The caller's context may have no deadline, and a
// client that the caller has made may not probe its connections. Over a silent connection such a
// request would wait until the operating system ends the connection.
func limited[T any](ctx context.Context, request func(context.Context) (T, error)) (T, error) {
	bounded, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	answer, err := request(bounded)
	late(bounded, err)
	if err != nil && ctx.Err() == nil && status.Convert(err).Message() == context.DeadlineExceeded.Error() {
		err = fmt.Errorf("the request was not answered within %s", requestTimeout)
	}
	return answer, err
}
