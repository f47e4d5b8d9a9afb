package server

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/backoff"
)

// login logs in on each new connection of a client of Open. go-redis would send a wrong password twice for each
// connection, and does not pace its attempts.
type login struct {
	user     string
	password func() string

	// refused has a *backoff.Refused for each address, since a user may have another password at each server. For
	// go-redis the primaries of a group of sentinels have one address.
	refused sync.Map
}

type dialFunc = func(ctx context.Context, network, address string) (net.Conn, error)

// after returns a function that opens a connection with dial and logs in, unless the server has refused a login lately.
func (l *login) after(dial dialFunc) dialFunc {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		at, _ := l.refused.LoadOrStore(address, &backoff.Refused{})
		refused := at.(*backoff.Refused)
		if err := refused.Err(); err != nil {
			return nil, err
		}
		conn, err := dial(ctx, network, address)
		sent := false
		if password := l.password(); err == nil && (l.user != "" || password != "") {
			sent = true
			if err = authenticate(ctx, conn, l.user, password); err != nil {
				closeNow(conn)
				conn = nil
			}
		}
		switch refusal := refusalOf(err); {
		case refusal != "":
			err = &NotSentError{refusal}
			refused.Note(err)
		case err == nil || !sent: // without an answer to a password, an earlier refusal stands
			refused.Note(nil)
		}
		return conn, err
	}
}

// refusalOf returns the answer by which a server refuses a login, "" if err is none. go-redis itself logs in at the
// sentinels, while the dial of a primary asks them for it, and joins the errors of several.
func refusalOf(err error) ServerError {
	answer, ok := errors.AsType[ServerError](err)
	if other, also := errors.AsType[redis.Error](err); !ok && also {
		answer, ok = serverError(other.Error()), true
	}
	if !ok || known(string(answer)).code != driver.CodeRefused {
		return ""
	}
	return answer
}

// DialHook implements redis.Hook.
func (l *login) DialHook(next redis.DialHook) redis.DialHook { return l.after(next) }

// ProcessHook implements redis.Hook.
func (l *login) ProcessHook(next redis.ProcessHook) redis.ProcessHook { return next }

// ProcessPipelineHook implements redis.Hook.
func (l *login) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

// authenticate sends AUTH as the first command of a connection, and reads its answer.
func authenticate(ctx context.Context, conn net.Conn, user, password string) error {
	words := []string{"AUTH", user, password}
	if user == "" {
		words = []string{"AUTH", password}
	}
	request := fmt.Appendf(nil, "*%d\r\n", len(words))
	for _, word := range words {
		request = fmt.Appendf(request, "$%d\r\n%s\r\n", len(word), word)
	}
	until := time.Now().Add(dialTimeout)
	if end, ok := ctx.Deadline(); ok && end.Before(until) {
		until = end
	}
	err := conn.SetDeadline(until)
	if err == nil {
		_, err = conn.Write(request)
	}
	var line []byte
	for one := make([]byte, 1); err == nil && len(line) < 1024 && !strings.HasSuffix(string(line), "\n"); line = append(line, one...) {
		_, err = conn.Read(one) // not a byte of the next answer
	}
	answer := strings.TrimSpace(string(line))
	switch {
	case err != nil:
		return &NotSentError{fmt.Errorf("login: %w", err)}
	case strings.HasPrefix(answer, "-"):
		return &NotSentError{serverError(answer[1:])}
	case answer != "+OK":
		return &NotSentError{errors.New("login: the server has answered AUTH with neither OK nor an error")}
	}
	return conn.SetDeadline(time.Time{})
}
