package transport

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/e2e/servertest"
)

// warnings counts the warnings of an exposed password.
type warnings struct {
	mu  sync.Mutex
	all []string
}

func (w *warnings) Start(ctx context.Context, _ holdfast.Event) context.Context { return ctx }

func (w *warnings) Event(_ context.Context, e holdfast.Event) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if e.Kind == holdfast.EventExposed {
		w.all = append(w.all, e.Err.Error())
	}
}

// TestPasswordWithoutVerifiedTLSIsReported: a password that goes to another machine without TLS to a verified server is
// reported once, and refused with require_tls=true. The client regards 0.0.0.0 as another machine.
func TestPasswordWithoutVerifiedTLSIsReported(t *testing.T) {
	ca := servertest.NewAuthority(t, "ca")
	verified, unverified := ca.Sign(t, "server"), servertest.SelfSigned(t)
	for _, s := range stores {
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			here := s.start(t)
			elsewhere := strings.Split(strings.ReplaceAll(strings.Join(here, ","), "127.0.0.1", "0.0.0.0"), ",")
			fronts := func(secure bool) (all []string) {
				files := unverified
				if secure {
					files = verified
				}
				for _, a := range here {
					all = append(all, impersonate(t, files, a, s.before).address)
				}
				return all
			}
			check := func(form string, addresses []string, warns bool, refused error) {
				t.Helper()
				var w warnings
				url := s.at(form, encoded, ca.File, addresses)
				if err := tryLock(t, url, holdfast.WithHooks(&w)); err != nil {
					t.Errorf("%s: %v", form, err)
				}
				if warns != (len(w.all) == 1) || len(w.all) > 1 {
					t.Errorf("%s: %q", form, w.all)
				}
				separator := "&"
				if !strings.Contains(url, "?") {
					separator = "?"
				}
				err := tryLock(t, url+separator+"require_tls=true", holdfast.WithHooks(&w))
				if !errors.Is(err, refused) || err != nil && !strings.Contains(err.Error(), "require_tls=true") || len(w.all) > 1 {
					t.Errorf("%s with require_tls=true: %v, %q", form, err, w.all)
				}
			}
			check(s.clear, here, false, holdfast.ErrInvalid)
			check(s.clear, elsewhere, true, holdfast.ErrInvalid)
			check(s.secure, fronts(true), false, nil)
			for _, form := range s.unverified {
				var other []string
				for _, a := range fronts(false) {
					other = append(other, strings.Replace(a, "127.0.0.1", "0.0.0.0", 1))
				}
				check(form, other, true, holdfast.ErrInvalid)
			}
		})
	}
}
