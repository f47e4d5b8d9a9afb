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

// ClockTokens returns how many tokens the statement that takes the lock reserves.
func (a *LockRequest) ClockTokens() int {
	if a.Durable {
		return 1
	}
	return a.Tokens
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
