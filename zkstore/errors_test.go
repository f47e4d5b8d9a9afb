package zkstore

import (
	"context"
	"errors"
	"net"
	"testing"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/calls"
	"github.com/holdfast-go/holdfast/internal/must"
	"github.com/holdfast-go/holdfast/zkstore/internal/zk"
)

// TestInspectionHasNoUnknownOutcome requires that an inspection without an answer fails as unavailable,
// since it has changed nothing.
func TestInspectionHasNoUnknownOutcome(t *testing.T) {
	s := &store{calls: calls.New()}
	for _, err := range []error{&zk.LostError{Err: errors.New("no answer")}, errSessionExpired} {
		if code := s.Classify(s.unread(err)); code != driver.CodeUnavailable {
			t.Errorf("%v: %s, want %s", err, code, driver.CodeUnavailable)
		}
	}
}

// causes is an error of a type that cannot be compared.
type causes []string

func (causes) Error() string { return "the caller has left" }

// TestAnyCauseEndsTheOpeningOfASession: a caller leaves while the server does not answer, and gives a cause of any type.
func TestAnyCauseEndsTheOpeningOfASession(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must.Succeed(t, err)
	defer l.Close()
	s, err := Open(t.Context(), "zk://"+l.Addr().String()+"/locks")
	must.Succeed(t, err)
	defer s.Close(t.Context())
	ctx, cancel := context.WithCancelCause(t.Context())
	go func() {
		conn, err := l.Accept()
		cancel(causes{"one", "two"})
		if err == nil {
			<-t.Context().Done()
			conn.Close()
		}
	}()
	if _, _, err := s.Get(ctx, "k"); !errors.Is(err, context.Canceled) || driver.CodeOf(err) != driver.CodeUnavailable {
		t.Errorf("%v, want unavailable: context canceled", err)
	}
}

// TestRenewalOfALostGrantIsNotHeld: a grant has expired, and the client is deleting its node. Its renewal is not one of
// a grant whose release is not confirmed.
func TestRenewalOfALostGrantIsNotHeld(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for cause, want := range map[driver.Cause]driver.Code{driver.CauseExpired: driver.CodeNotHeld, "": driver.CodeUnavailable} {
		ss := &session{zk: &zk.Session{}, grants: map[string]*grant{}}
		g := &grant{Grant: driver.Grant{ID: "id", Name: "n", Token: 1}, ss: ss, cause: cause, ending: true, busy: true}
		ss.grants[g.ID] = g
		if r := g.renew(ctx, driver.Now()); driver.CodeOf(r.Err) != want || r.Cause != cause {
			t.Errorf("cause %q: %v, %v; want code %v", cause, r.Cause, r.Err, want)
		}
	}
}
