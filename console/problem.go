package console

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/fence"
	"github.com/holdfast-go/holdfast/internal/shape"
	"github.com/holdfast-go/holdfast/optimistic"
)

// problem is an error of the API.
type problem struct {
	status  int
	Code    string         `json:"code"` // one of codes
	Message string         `json:"message"`
	Cause   string         `json:"cause,omitempty"`   // of a loss
	Newest  string         `json:"newest,omitempty"`  // the token that made another one stale
	Holders []shape.Holder `json:"holders,omitempty"` // of a busy name, as far as the store names them
}

// answer is the body of an error.
type answer struct {
	Error *problem `json:"error"`
}

func (p *problem) Error() string { return p.Message }

func invalid(format string, args ...any) error { return refuse("invalid", format, args...) }

// refuse returns a problem with one of codes.
func refuse(code, format string, args ...any) *problem {
	p := &problem{Code: code, Message: fmt.Sprintf(format, args...)}
	for _, c := range codes {
		if c.code == code {
			p.status = c.status
		}
	}
	return p
}

// codes are the codes of errors with their statuses, and the errors of the library that they stand for, in the order in
// which they are tested.
var codes = []struct {
	code   string
	status int
	errs   []error
}{
	{"lost", http.StatusGone, []error{holdfast.ErrLost}},
	{"stale", http.StatusConflict, []error{fence.ErrStale}},
	{"conflict", http.StatusConflict, []error{optimistic.ErrConflict}},
	{"busy", http.StatusConflict, []error{holdfast.ErrBusy}},
	{"unknown", http.StatusGatewayTimeout, []error{optimistic.ErrUnknown}},
	{"not_held", http.StatusNotFound, []error{holdfast.ErrNotHeld}},
	{"invalid", http.StatusBadRequest, []error{holdfast.ErrInvalid, holdfast.ErrSelfDeadlock, fence.ErrInvalid}},
	{"unsupported", http.StatusNotImplemented, []error{holdfast.ErrUnsupported, fence.ErrUnsupported}},
	{"refused", http.StatusBadGateway, []error{holdfast.ErrRefused, fence.ErrCorrupt}},
	{"unavailable", http.StatusServiceUnavailable,
		[]error{holdfast.ErrUnavailable, holdfast.ErrClosed, fence.ErrUnavailable, context.DeadlineExceeded}},
	{"unauthorized", http.StatusUnauthorized, nil},
	{"forbidden", http.StatusForbidden, nil},
	{"origin", http.StatusForbidden, nil},
	{"host", http.StatusForbidden, nil},
	{"too_large", http.StatusRequestEntityTooLarge, nil},
	{"media_type", http.StatusUnsupportedMediaType, nil},
	{"limit", http.StatusTooManyRequests, nil},
}

// problemOf returns the form of an error for clients.
func problemOf(err error) *problem {
	if p, ok := errors.AsType[*problem](err); ok {
		return p
	}
	p := refuse("unavailable", "%v", err)
	for _, c := range codes {
		for _, target := range c.errs {
			if errors.Is(err, target) {
				p.Code, p.status = c.code, c.status
				p.details(err)
				return p
			}
		}
	}
	return p
}

// details adds what the error has beside its text.
func (p *problem) details(err error) {
	if lost, ok := errors.AsType[*holdfast.LostError](err); ok {
		p.Cause = string(lost.Cause)
	}
	if stale, ok := errors.AsType[*fence.StaleError](err); ok {
		p.Newest = strconv.FormatUint(stale.Newest, 10)
	}
	if busy, ok := errors.AsType[*holdfast.BusyError](err); ok {
		p.Holders = holders(busy.Holders)
	}
}

func holders(all []holdfast.Holder) (shown []shape.Holder) {
	for _, h := range all {
		shown = append(shown, shape.OfHolder(h, time.Now()))
	}
	return shown
}
