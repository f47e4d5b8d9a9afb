package sqlkit

import (
	"context"
	"crypto/rand"
	"encoding/hex"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/backoff"
)

// Values keeps versioned values in the table holdfast_value. It implements driver.Values.
type Values struct {
	namespace string
	dialect   *Dialect
	faults    Faults // nothing was written if another try may succeed
	run       func(ctx context.Context, statements ...string) (Answers, error)
}

// NewValues returns the values of a namespace. It uses links without a transaction, at a primary. A primary that has
// become read-only keeps its connections, and would serve Get forever.
func NewValues(namespace string, d *Dialect, f Faults, links *Pool) *Values {
	return &Values{namespace, d, f, func(ctx context.Context, statements ...string) (Answers, error) {
		return links.RunAtPrimary(ctx, f, d, statements...)
	}}
}

// Get implements driver.Values.
func (v *Values) Get(ctx context.Context, key string) ([]byte, string, error) {
	answer, err := v.exchange(ctx, key, nil, func(k []byte) []string { return []string{v.dialect.value(k)} })
	if err != nil {
		if driver.CodeOf(err) == driver.CodeUnknown { // a read writes nothing, so its outcome is known
			err = driver.Errorf(driver.CodeUnavailable, "%w", err)
		}
		return nil, "", err
	}
	row := answer.Last()
	if row == nil {
		return nil, "", nil
	}
	data, err := hex.DecodeString(row.Text(1))
	if err != nil || row.Text(0) == "" {
		return nil, "", driver.Broken("holdfast_value "+v.namespace+"\x00"+key, "it has no version, or its data are too long")
	}
	return data, row.Text(0), nil
}

// Put implements driver.Values.
func (v *Values) Put(ctx context.Context, key string, data []byte, version string) (string, error) {
	next := rand.Text()
	answer, err := v.exchange(ctx, key, data, func(k []byte) []string {
		if version == "" {
			return v.dialect.putNew(k, data, next)
		}
		return v.dialect.putOver(k, data, version, next)
	})
	if err != nil {
		return "", err
	}
	if answer.Last().Text(0) != "1" {
		return "", driver.Conflict(key)
	}
	return next, nil
}

func (v *Values) exchange(ctx context.Context, key string, data []byte, statements func(key []byte) []string) (Answers, error) {
	if err := driver.CheckValue(key, data); err != nil {
		return nil, err
	}
	if err := ctx.Err(); err != nil {
		return nil, driver.Errorf(driver.CodeUnavailable, "%w", err)
	}
	if err := v.dialect.resolve(ctx); err != nil {
		return nil, err
	}
	for tries := 1; ; tries++ {
		answer, err := v.run(ctx, statements([]byte(v.namespace+"\x00"+key))...)
		if err == nil {
			return answer, nil
		}
		err, retry := v.faults.Sort(err)
		if !retry || tries == maxTries || backoff.Yield(ctx, tries) != nil {
			return nil, err
		}
	}
}
