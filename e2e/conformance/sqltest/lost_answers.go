package sqltest

import (
	"strings"
	"testing"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/e2e/conformance/contention"
)

// SwapWithLostAnswers lets goroutines of two processes contend for one name, while answers to releases and
// swaps are lost again and again. It requires what [contention.WithLostAnswers] requires.
func SwapWithLostAnswers(t *testing.T, d *Database, recipes []string) {
	d.Each(t, recipes, func(t *testing.T, params, database string) {
		other := d.Store(t, database, params)
		defer Close(t, other)
		reads := 0 // the number of reads of a release before its write
		if !d.onSession(strings.TrimPrefix(params, "recipe=")) {
			reads = 1
		}
		contention.WithLostAnswers(t, "lost-answers", other, 6, func() contention.Client {
			s, p := d.proxied(t, database, params)
			t.Cleanup(func() { Close(t, s) })
			return contention.Client{
				Store: s,
				Lose:  func() error { return p.LoseAnswer(reads) },
				// The proxy may lose the answer to a request of another kind, such as a ping.
				Errors: []error{holdfast.ErrUnavailable, holdfast.ErrLost},
			}
		}, holdfast.LocalHandoff(0))
	})
}
