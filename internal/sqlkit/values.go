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
	// Namespace is that of the store.
	Namespace string
	Dialect   *Dialect
	// Run runs statements on a connection without a transaction, at a primary.
	Run func(ctx context.Context, statements ...string) (Answers, error)
	// Sort adds a code to an error of Run, like Sort of [Faults]. Nothing was written if another try may succeed.
	Sort func(error) (error, bool)
}

// Get implements driver.Values.
func (v *Values) Get(ctx context.Context, key string) ([]byte, string, error) {
	answer, err := v.run(ctx, key, nil, func(k []byte) []string { return []string{v.Dialect.value(k)} })
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
		return nil, "", driver.Broken("holdfast_value "+v.Namespace+"\x00"+key, "it has no version, or its data are too long")
	}
	return data, row.Text(0), nil
}

// Put implements driver.Values.
func (v *Values) Put(ctx context.Context, key string, data []byte, version string) (string, error) {
	next := rand.Text()
	answer, err := v.run(ctx, key, data, func(k []byte) []string {
		if version == "" {
			return v.Dialect.putNew(k, data, next)
		}
		return v.Dialect.putOver(k, data, version, next)
	})
	if err != nil {
		return "", err
	}
	if answer.Last().Text(0) != "1" {
		return "", driver.Conflict(key)
	}
	return next, nil
}

func (v *Values) run(ctx context.Context, key string, data []byte, statements func(key []byte) []string) (Answers, error) {
	if err := driver.CheckValue(key, data); err != nil {
		return nil, err
	}
	if err := ctx.Err(); err != nil {
		return nil, driver.Errorf(driver.CodeUnavailable, "%w", err)
	}
	if err := v.Dialect.resolve(ctx); err != nil {
		return nil, err
	}
	for tries := 1; ; tries++ {
		answer, err := v.Run(ctx, statements([]byte(v.Namespace+"\x00"+key))...)
		if err == nil {
			return answer, nil
		}
		err, retry := v.Sort(err)
		if !retry || tries == maxTries || backoff.Yield(ctx, tries) != nil {
			return nil, err
		}
	}
}
