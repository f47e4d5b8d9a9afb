package sqlkit

import (
	"context"
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

// GiveBack is for a Lock that has the lock at the server and fails after that, as when
// its token cannot be written down. It has the recipe clear the session, and answers
// what Lock should: the error, with a code by which the request has certainly had no
// effect, or Unknown if the server has not confirmed that within a second, so that the
// request is undone.
func GiveBack(ctx context.Context, r Recipe, s *Session, err error) error {
	brief, cancel := context.WithTimeout(context.WithoutCancel(ctx), cancelWithin)
	defer cancel()
	if cerr := r.Clear(brief, s); cerr != nil {
		// Neither is wrapped: what a link says of its own end is no word about the lock.
		return driver.Errorf(driver.CodeUnknown, "%v, and the lock is not seen to be given back: %v", err, cerr)
	}
	if coded, again := r.Sort(err); !again && driver.CodeOf(coded) == driver.CodeUnknown {
		return driver.Errorf(driver.CodeUnavailable, "%w", err)
	}
	return err
}

// TokenWithin bounds the writing down of a token, for which others wait: with the lock
// taken, and on a user's pool perhaps with the last connections, so that two requests
// would wait for each other.
func TokenWithin(ctx context.Context, a *Ask) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, min(a.TTL/3, 5*time.Second))
}
