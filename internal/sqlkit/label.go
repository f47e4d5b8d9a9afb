package sqlkit

import (
	"encoding/base64"
	"strconv"
	"strings"
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

// Label describes a request. Its statement carries the label in a comment, so that the
// server's list of sessions shows the owner of the request. The encoded label is plain
// ASCII, without a star, a slash or a quote.
type Label struct {
	Key   []byte // namespace, NUL, name
	Owner driver.Owner
	Limit int
	TTL   time.Duration
	// Tokens is the number of tokens of a grant; 0 means 1.
	Tokens int
	// Waited is how long a request has waited before its present statement.
	Waited time.Duration
}

// labelMark begins a label. The fields that follow are separated by dots:
//
//	key, owner's ID, limit, TTL, PID, host, instance, reason, tokens, waited
//
// Only a request that has waited before has the last field. It and a grant of several tokens have the field tokens.
// A dot follows the last field, and then the rest of the statement.
const labelMark = "hf1."

// labelFields is the number of fields without tokens and waited.
const labelFields = 8

// maxTime limits a TTL in microseconds, so that no sum of times overflows.
const maxTime = 1 << 53

var labelText = base64.RawURLEncoding

// Encode returns the label as text of at most maxBytes bytes. If necessary it
// shortens the reason, then the instance and the host.
func (l Label) Encode(maxBytes int) string {
	fields := []string{
		labelText.EncodeToString(l.Key), l.Owner.ID, strconv.Itoa(l.Limit), strconv.FormatInt(l.TTL.Microseconds(), 36), strconv.Itoa(l.Owner.PID),
	}
	s, end := labelMark+strings.Join(fields, "."), "."
	if l.Tokens > 1 || l.Waited > 0 {
		end += strconv.Itoa(l.Tokens) + "."
	}
	if l.Waited > 0 {
		end += strconv.FormatInt(l.Waited.Microseconds(), 36) + "."
	}
	for _, text := range []string{l.Owner.Host, l.Owner.Instance, l.Owner.Reason} {
		free := max(maxBytes-len(s)-len("....")-len(end), 0) * 3 / 4
		if len(text) > free {
			text = strings.ToValidUTF8(text[:free], "")
		}
		s += "." + labelText.EncodeToString([]byte(text))
	}
	return s + end
}

// FindLabel returns the label in a statement. ok is false if the statement has none.
func FindLabel(statement string) (l Label, ok bool) {
	_, rest, found := strings.Cut(statement, labelMark)
	if !found {
		return l, false
	}
	fields := strings.SplitN(rest, ".", labelFields+3)
	if len(fields) <= labelFields {
		return l, false
	}
	var err error
	if l.Key, err = labelText.DecodeString(fields[0]); err != nil {
		return l, false
	}
	l.Owner.ID = fields[1]
	var ttl, waited int64
	if l.Limit, err = strconv.Atoi(fields[2]); err == nil {
		ttl, err = strconv.ParseInt(fields[3], 36, 64)
	}
	if err == nil {
		l.Owner.PID, err = strconv.Atoi(fields[4])
	}
	if err != nil || l.Limit < driver.Exclusive || l.Limit > driver.MaxLimit && l.Limit != driver.Unlimited || ttl < 0 || ttl > maxTime {
		return Label{}, false
	}
	l.TTL = time.Duration(ttl) * time.Microsecond
	// The last of the fields is the rest of the statement, or tokens that the server has cut off.
	if len(fields) > labelFields+1 {
		if l.Tokens, err = strconv.Atoi(fields[labelFields]); err != nil || l.Tokens < 0 || l.Tokens > maxTokens {
			l.Tokens = 0
		} else if len(fields) > labelFields+2 {
			if waited, err = strconv.ParseInt(fields[labelFields+1], 36, 64); err == nil && waited >= 0 && waited <= maxTime {
				l.Waited = time.Duration(waited) * time.Microsecond
			}
		}
	}
	for i, to := range []*string{&l.Owner.Host, &l.Owner.Instance, &l.Owner.Reason} {
		b, err := labelText.DecodeString(fields[5+i])
		if err != nil {
			return l, false
		}
		*to = string(b)
	}
	return l, true
}
