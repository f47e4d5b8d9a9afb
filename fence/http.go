package fence

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"maps"
	"mime"
	"net/http"
	"strconv"
)

// Header is the name of the header that carries a fencing token, as a decimal
// number.
const Header = "Fencing-Token"

// SetHeader sets the token of a request and replaces an earlier one. It returns a [*TokenError]
// for a token that no grant can have.
func SetHeader(req *http.Request, token uint64) error {
	if err := checkToken(token); err != nil {
		return err
	}
	req.Header.Set(Header, strconv.FormatUint(token, 10))
	return nil
}

// FromRequest returns the token that a request carries. Errors wrap
// [ErrMissing], or [ErrInvalid] where the header is not one token.
func FromRequest(req *http.Request) (uint64, error) {
	switch values := req.Header.Values(Header); len(values) {
	case 0:
		return 0, fmt.Errorf("%w: header %s is missing", ErrMissing, Header)
	case 1:
		token, err := Parse(values[0])
		if err != nil {
			return 0, fmt.Errorf("header %s: %w", Header, err)
		}
		return token, nil
	default:
		// If there are several values, a proxy might use another one than this server.
		return 0, fmt.Errorf("%w: header %s is there %d times, want once", ErrInvalid, Header, len(values))
	}
}

// Transport is an http.RoundTripper that sends the token of each request's context in
// the header, to a server behind [Handler]:
//
//	client := &http.Client{Transport: fence.Transport{
//		Token: func(ctx context.Context) uint64 { return holdfast.Token(ctx, "invoices") },
//	}}
//
// A response of 412 is an ordinary response: [FromResponse] returns the [*StaleError] for it.
// Redirects carry the token, too, so set CheckRedirect if the server may redirect to
// another server that must not get the token.
type Transport struct {
	// Base sends the requests. Default: http.DefaultTransport.
	Base http.RoundTripper
	// Token returns the token to send. For a token that no grant can have, RoundTrip returns a
	// [*TokenError] and sends nothing: 0 means that the lock has ended. Required.
	Token func(context.Context) uint64
}

// RoundTrip implements http.RoundTripper.
func (t Transport) RoundTrip(req *http.Request) (*http.Response, error) {
	var err error
	clone := req.Clone(req.Context()) // a RoundTripper must not change its request
	if t.Token == nil {
		err = fmt.Errorf("%w: Transport.Token is nil", ErrInvalid)
	} else {
		err = SetHeader(clone, t.Token(req.Context()))
	}
	if err != nil {
		if req.Body != nil {
			_ = req.Body.Close() // as every RoundTripper must
		}
		return nil, err
	}
	base := t.Base
	if base == nil {
		base = http.DefaultTransport
	}
	return base.RoundTrip(clone)
}

// problem is the body of a refusal, as in RFC 9457.
type problem struct {
	Title    string `json:"title"`
	Status   int    `json:"status"`
	Detail   string `json:"detail,omitempty"`
	Resource string `json:"resource,omitempty"`
	Token    uint64 `json:"token,omitempty"`
	Newest   uint64 `json:"newest,omitempty"`
}

const (
	problemType  = "application/problem+json"
	staleTitle   = "stale fencing token"
	problemLimit = 64 << 10
)

// Handler runs next within guard. A request with a token smaller than the largest one seen for
// its resource never reaches next. No newer request overtakes one that runs.
//
//	mux.Handle("PUT /invoices/{id}", fence.Handler(guard, resource, save))
//
// Resource returns the name of the resource that a request writes; two requests
// for the same resource must get the same name. Put Handler around writes only,
// and behind authentication: each client that reaches it can raise the token of
// each resource up to the largest number. With a [Memory] guard, refuse requests
// for resources that do not exist before they reach Handler, because Memory keeps
// their names.
//
// Handler itself responds, with an application/problem+json body, with
//
//	400  the header is not a token, or the resource has no valid name
//	412  the token is stale; "token" and "newest" are both tokens, as JSON numbers
//	428  the request carries no token
//	500  the response of next is larger than 8 MiB
//	503  the guard failed or was not reached in time; the reason is written to
//	     the server's ErrorLog and not sent to the client
//
// Handler keeps the response of next in memory, at most 8 MiB, and sends it after the guard has returned. So it
// reports no success before, for example, a transaction is committed. For that reason next
// cannot stream, flush or hijack the connection. A status of 400 or more is a failed write:
// Handler sends it unchanged, and a guard of [SQL.Guard] rolls back. The same holds for a response
// that is too large.
//
// One slow request makes the other requests of its resource wait. Limit its time
// with the server's ReadTimeout or an http.TimeoutHandler around Handler.
func Handler(guard Guard[Func], resource func(*http.Request) string, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		token, err := FromRequest(r)
		if err != nil {
			status := http.StatusBadRequest
			if errors.Is(err, ErrMissing) {
				status = http.StatusPreconditionRequired
			}
			refuse(w, problem{Title: http.StatusText(status), Status: status, Detail: err.Error()})
			return
		}
		name := resource(r)
		if err := checkResource(name); err != nil {
			refuse(w, problem{Title: http.StatusText(http.StatusBadRequest), Status: http.StatusBadRequest, Detail: err.Error()})
			return
		}
		var answer *recorder
		err = guard.Write(r.Context(), name, token, func(ctx context.Context) error {
			answer = &recorder{header: make(http.Header)}
			next.ServeHTTP(answer, r.WithContext(ctx))
			if answer.large {
				return errLarge
			}
			if answer.status() >= http.StatusBadRequest {
				return errAnswered
			}
			return nil
		})
		var stale *StaleError
		switch {
		case err == nil && answer != nil, errors.Is(err, errAnswered):
			answer.send(w)
		case errors.Is(err, errLarge):
			logf(r, "fence: %s %s: %v", r.Method, r.URL.Path, err)
			refuse(w, problem{
				Title: http.StatusText(http.StatusInternalServerError), Status: http.StatusInternalServerError,
				Detail: "the response is too large",
			})
		case errors.As(err, &stale):
			refuse(w, problem{
				Title: staleTitle, Status: http.StatusPreconditionFailed, Detail: stale.Error(),
				Resource: stale.Resource, Token: stale.Token, Newest: stale.Newest,
			})
		default:
			logf(r, "fence: %s %s: %v", r.Method, r.URL.Path, err)
			refuse(w, problem{
				Title: "fencing guard unavailable", Status: http.StatusServiceUnavailable,
				Detail: "the write was not confirmed",
			})
		}
	})
}

// errAnswered makes the guard treat the write as failed. Handler never returns it.
var errAnswered = fmt.Errorf("%w: the handler answered with an error", ErrUnavailable)

// maxResponse is the largest body of a response that Handler keeps in memory.
const maxResponse = 8 << 20

// errLarge makes the guard treat the write as failed. Handler never returns it.
var errLarge = fmt.Errorf("%w: the response has more than %d bytes", ErrUnavailable, maxResponse)

// FromResponse returns the [*StaleError] that a response of [Handler] carries,
// or nil if it is another response. The body can be read as before.
func FromResponse(resp *http.Response) error {
	if resp.StatusCode != http.StatusPreconditionFailed || resp.Body == nil {
		return nil
	}
	if kind, _, err := mime.ParseMediaType(resp.Header.Get("Content-Type")); err != nil || kind != problemType {
		return nil
	}
	head, err := io.ReadAll(io.LimitReader(resp.Body, problemLimit))
	rest := io.Reader(resp.Body)
	if err != nil {
		rest = failing{err}
	}
	resp.Body = struct {
		io.Reader
		io.Closer
	}{io.MultiReader(bytes.NewReader(head), rest), resp.Body}
	var p problem
	if err := json.Unmarshal(head, &p); err != nil || p.Title != staleTitle {
		return nil
	}
	// Another server may use the same title: only valid tokens make a StaleError.
	if checkToken(p.Token) != nil || checkToken(p.Newest) != nil || p.Token >= p.Newest {
		return nil
	}
	return &StaleError{Resource: p.Resource, Token: p.Token, Newest: p.Newest}
}

type failing struct{ err error }

func (f failing) Read([]byte) (int, error) { return 0, f.err }

func refuse(w http.ResponseWriter, p problem) {
	body, err := json.Marshal(p)
	if err != nil {
		// Strings and numbers cannot fail.
		panic(err)
	}
	w.Header().Set("Content-Type", problemType)
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(p.Status)
	_, _ = w.Write(append(body, '\n')) // an error means that the client is gone
}

// logf writes to the log that net/http uses for errors of this server.
func logf(r *http.Request, format string, args ...any) {
	if s, ok := r.Context().Value(http.ServerContextKey).(*http.Server); ok && s.ErrorLog != nil {
		s.ErrorLog.Printf(format, args...)
		return
	}
	log.Printf(format, args...)
}

// recorder keeps a response until the guard has returned. It has no Unwrap, because
// a Flush that reached the connection would send the response early.
type recorder struct {
	header http.Header
	sent   http.Header // the header as it was when the status was written
	code   int
	body   bytes.Buffer
	large  bool // the body has exceeded maxResponse
}

func (a *recorder) Header() http.Header { return a.header }

func (a *recorder) WriteHeader(code int) {
	// Informational responses (1xx) would be sent at once. They are dropped.
	if a.code != 0 || code < http.StatusOK {
		return
	}
	a.code = code
	a.sent = a.header.Clone()
}

func (a *recorder) Write(p []byte) (int, error) {
	a.WriteHeader(http.StatusOK)
	if a.large = a.large || len(p) > maxResponse-a.body.Len(); a.large {
		return 0, errLarge
	}
	return a.body.Write(p)
}

func (a *recorder) status() int {
	if a.code == 0 {
		return http.StatusOK
	}
	return a.code
}

func (a *recorder) send(w http.ResponseWriter) {
	header := a.sent
	if header == nil {
		header = a.header
	}
	maps.Copy(w.Header(), header)
	w.WriteHeader(a.status())
	_, _ = w.Write(a.body.Bytes()) // an error means that the client is gone
	// Headers that next set after the status can only be trailers.
	for name, values := range a.header {
		if _, early := header[name]; !early {
			w.Header()[name] = values
		}
	}
}
