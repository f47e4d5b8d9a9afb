package sqlkit

import (
	"context"
	"database/sql"
	"encoding/hex"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

func textRow(columns ...string) (r Row) {
	for _, c := range columns {
		r = append(r, sql.NullString{String: c, Valid: true})
	}
	return r
}

// FuzzLabel: the label of any statement has a possible limit, TTL and number of tokens, and no text that is
// longer than the statement.
func FuzzLabel(f *testing.F) {
	f.Add("SELECT /*" + Label{Key: []byte("\x00n"), Owner: driver.Owner{ID: "x", Host: "h"}, Limit: 3, TTL: time.Second, Tokens: 65}.Encode(1400) + "*/ 1")
	f.Add("hf1.AG4.x.0.1y2p0ij32e8e7.-1.aA.aQ.cg.99999.")
	f.Fuzz(func(t *testing.T, statement string) {
		l, ok := FindLabel(statement)
		if !ok {
			return
		}
		if l.Limit < 1 || l.Limit > driver.MaxLimit && l.Limit != driver.Unlimited || l.TTL < 0 || l.Waited < 0 || l.Tokens < 0 || l.Tokens > maxTokens {
			t.Errorf("%q: %+v", statement, l)
		}
		if len(l.Key)+len(l.Owner.ID)+len(l.Owner.Host)+len(l.Owner.Instance)+len(l.Owner.Reason) > len(statement) {
			t.Errorf("%q: the texts are longer: %+v", statement, l)
		}
	})
}

// FuzzStoredValue: a row of the table of values is a value with a version, or an error that names its key.
func FuzzStoredValue(f *testing.F) {
	f.Add("v1", hex.EncodeToString([]byte("data")), false)
	f.Add("", "zz", true)
	f.Fuzz(func(t *testing.T, version, data string, null bool) {
		v := Values{namespace: "ns", faults: certain{},
			dialect: &Dialect{In: func(string) string { return "" }, Lit: func([]byte) string { return "" }},
			run: func(context.Context, ...string) (Answers, error) {
				if null {
					return Answers{{Row{{}, {}}}}, nil
				}
				return Answers{{textRow(version, data)}}, nil
			}}
		got, read, err := v.Get(t.Context(), "key")
		switch {
		case err != nil && (driver.CodeOf(err) != driver.CodeRefused || !strings.Contains(err.Error(), "key")):
			t.Errorf("%v", err)
		case err == nil && (null || version == "" || read != version || hex.EncodeToString(got) != strings.ToLower(data)):
			t.Errorf("%q, %q: %q, %q", version, data, got, read)
		}
	})
}
