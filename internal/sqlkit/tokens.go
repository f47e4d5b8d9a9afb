package sqlkit

import "github.com/holdfast-go/holdfast/driver"

// maxTokens limits the tokens of a grant. Each is a microsecond of the server's clock.
const maxTokens = 1000

// tokens returns how many tokens a request can reserve: only an exclusive grant has several.
func tokens(r *driver.Request) int {
	if r.Limit != driver.Exclusive {
		return 1
	}
	return min(max(r.Tokens, 1), maxTokens)
}

// has reports whether token is one of the n that begin with first.
func has(first uint64, n int, token uint64) bool {
	return first <= token && token <= driver.LastToken(first, n)
}

// draw returns the first token of a grant, and how many of the n requested it has. They are larger
// than every earlier token of the name. Only the first may be ahead of the server's clock. A grant
// that creates the row has one token.
func (r *row) draw(n int) (first int64, tokens int) {
	first = max(r.token, r.highWater) + 1
	if !r.exists {
		n = 1
	}
	first = max(first, r.now-int64(n)+1)
	return first, int(min(max(r.now-first+1, 1), int64(n)))
}

// Counted returns the tokens of a grant that has raised a committed counter from before to
// after. They are larger than before. The token of granted is the clock when the lock was granted.
// Unless the clock was set back, they are not smaller than that token. So they are larger than the
// tokens of clients without durable tokens.
func (a *LockRequest) Counted(granted Got, before, after int64) Got {
	first := max(before+1, min(int64(granted.Token), after), after-int64(a.Tokens)+1)
	granted.Token, granted.Tokens = uint64(first), int(after-first+1)
	return granted
}
