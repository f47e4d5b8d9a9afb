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
func (s *store) Classify(err error) driver.Code {
	if c := driver.CodeOf(err); c != driver.CodeUnknown {
		return c
	}
	return codeOf(err)
}

// codeOf returns the code of an error after which it is certain that nothing was applied. For any
// other error it returns CodeUnknown. A driver.Error keeps its code.
//
// The exception is CodeRefused of a server without space: the server still applies the request that
// exceeds the space. A caller that undoes such a request compares the error with
// rpctypes.ErrNoSpace. A caller that does not undo it uses writeError.
func codeOf(err error) driver.Code {
	var own *driver.Error
	if errors.As(err, &own) {
		return own.Code
	}
	if errors.Is(err, rpctypes.ErrTooManyRequests) {
		return driver.CodeUnavailable // the server checks this before it proposes the request
	}
	code := codes.Unknown
	var e rpctypes.EtcdError
	if errors.As(rpctypes.Error(err), &e) {
		code = e.Code()
		if code == codes.ResourceExhausted { // the server has no space
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
	// large: the request may have been applied.
	return driver.CodeUnknown
}

// unavailable returns the error of a request that needs no undo: it only reads, or what it creates
// expires. So an unknown outcome becomes CodeUnavailable. If the context has ended, the error begins
// with the context's cause, because a server may report a passed deadline by a text of its own.
func unavailable(ctx context.Context, err error) error {
	awaitDeadline(ctx, err)
	code := codeOf(err)
	if code == driver.CodeUnknown {
		code = driver.CodeUnavailable
	}
	if ctx.Err() != nil {
		err = errors.Join(context.Cause(ctx), err)
	}
	return &driver.Error{Code: code, Err: err}
}

// unknown returns the error of a transaction, which the server may have applied unless it refused
// it. If the context has ended, the error begins with the context's cause.
func unknown(ctx context.Context, err error) error {
	awaitDeadline(ctx, err)
	code := codeOf(err) // before the context's cause is joined, which may have any code
	if ctx.Err() != nil {
		err = errors.Join(context.Cause(ctx), err)
	}
	return &driver.Error{Code: code, Err: err}
}

// writeError returns the error of a transaction that writes and is not undone. Unlike unknown, it
// returns CodeUnknown for a server without space, which may have applied the transaction.
func writeError(ctx context.Context, err error) error {
	noSpace := errors.Is(err, rpctypes.ErrNoSpace)
	err = unknown(ctx, err)
	if noSpace {
		err = &driver.Error{Code: driver.CodeUnknown, Err: err}
	}
	return err
}

// awaitDeadline waits for the end of a context whose deadline has passed at the server. The server
// receives the deadline, and its clock may reach the deadline a little earlier.
func awaitDeadline(ctx context.Context, err error) {
	if _, ok := ctx.Deadline(); ok && deadlinePassed(err) {
		<-ctx.Done()
	}
}

// deadlinePassed reports whether the server or gRPC has reported that the request's deadline passed.
func deadlinePassed(err error) bool {
	return status.Convert(err).Message() == context.DeadlineExceeded.Error()
}

// limited limits one request to requestTimeout. The caller's context may have no deadline, and an
// etcd client that the program has made may not probe its connections. Over a silent connection such
// a request would wait until the operating system ends the connection.
func limited[T any](ctx context.Context, request func(context.Context) (T, error)) (T, error) {
	bounded, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	answer, err := request(bounded)
	awaitDeadline(bounded, err)
	if err != nil && ctx.Err() == nil && deadlinePassed(err) {
		err = fmt.Errorf("the request was not answered within %s", requestTimeout)
	}
	return answer, err
}
