//go:build linux || darwin

package run

import (
	"context"
	"fmt"
	"hash/fnv"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/backoff"
	"github.com/holdfast-go/holdfast/internal/printable"
)

// The environment variables of a command. EnvHeld contains a mark for the grant of this run and for
// the grants of all outer runs: a fingerprint of the lock, because the name alone does not identify
// it, and the token.
const (
	EnvName  = "HOLDFAST_NAME"
	EnvToken = "HOLDFAST_TOKEN"
	EnvSlot  = "HOLDFAST_SLOT"
	EnvHeld  = "HOLDFAST_HELD"
	// EnvGuardian is the number of the guardian's process. Only a section has it. A script ends this
	// process to release the lock.
	EnvGuardian = "HOLDFAST_GUARDIAN"
)

// fingerprint identifies a lock in EnvHeld. It contains no password.
func (o *Options) fingerprint() string {
	h := fnv.New64a()
	fmt.Fprintf(h, "%s\x00%s\x00%s", printable.Redact(o.Store), o.Namespace, o.Name)
	return fmt.Sprintf("%016x", h.Sum64())
}

// heldBy returns the value of EnvHeld for a command under a grant of this lock.
func (o *Options) heldBy(token uint64) string {
	return strings.Join(append(outerMarks(), o.fingerprint()+"-"+strconv.FormatUint(token, 10)), ",")
}

// outerMarks returns the marks in EnvHeld. It leaves out everything else, because another
// program may have set the variable.
func outerMarks() []string {
	return regexp.MustCompile(`\b[0-9a-f]{16}-[0-9]{1,20}\b`).FindAllString(os.Getenv(EnvHeld), -1)
}

// nestedError is the error of a run that would wait for the outer run that has the token.
type nestedError struct {
	name  string
	token uint64
}

func (e *nestedError) Error() string {
	return fmt.Sprintf("%q is held by an outer holdfast run with token %d, and this one would wait for it forever; "+
		"if the outer run does not wait for this one, unset %s", e.name, e.token, EnvHeld)
}

// Unwrap returns ErrInvalid, because the call is wrong.
func (e *nestedError) Unwrap() error { return holdfast.ErrInvalid }

// checkNested returns a nestedError if grants of outer runs keep this run waiting. EnvHeld may outlive these
// grants, for example in a daemon, so checkNested looks for their tokens in the store.
func (r *runner) checkNested(ctx context.Context, w *waiting, g holdfast.Guarantees) error {
	var tokens []uint64
	for _, mark := range outerMarks() {
		if text, ok := strings.CutPrefix(mark, r.fingerprint()+"-"); ok {
			token, _ := strconv.ParseUint(text, 10, 64)
			tokens = append(tokens, token)
		}
	}
	if len(tokens) == 0 || r.Try || w.inspect == nil {
		return nil
	}
	if backoff.Sleep(ctx, g.VisibleAfter) != nil {
		return nil // the time of --wait is over
	}
	st, err := w.inspect(ctx)
	if err != nil {
		return err
	}
	least := driver.Exclusive
	switch {
	case r.Shared:
		least = driver.Unlimited
	case r.Limit > 0:
		least = r.Limit
	}
	// A grant of limit n never stands beside more than n-1 others. A waiter of limit n, behind which this run would
	// queue, waits like that, too.
	for _, waiter := range st.Waiters {
		least = min(least, waiter.Limit)
	}
	var outer []uint64
	for _, h := range st.Holders {
		end := h.Token + uint64(max(h.Tokens, 1))
		if !h.Kept && slices.ContainsFunc(tokens, func(t uint64) bool { return h.Token <= t && t < end }) {
			least = min(least, h.Limit)
			outer = append(outer, h.Token)
		}
	}
	if len(outer) > 0 && len(outer) >= least {
		return &nestedError{r.Name, outer[len(outer)-1]}
	}
	return nil
}
