package pgstore

import (
	"context"
	"slices"
	"strconv"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/holdfast-go/holdfast/internal/must"
)

// TestLastHostIsTriedFirst: the host of the last connection comes first, with and without TLS in their order.
func TestLastHostIsTriedFirst(t *testing.T) {
	pg, err := pgconn.ParseConfig("postgres://u@a:1,b:2,c:3/db?sslmode=prefer")
	must.Succeed(t, err)
	pg.LookupFunc = func(_ context.Context, host string) ([]string, error) {
		return []string{map[string]string{"a": "10.0.0.1", "b": "10.0.0.2", "c": "10.0.0.3"}[host]}, nil
	}
	order := func(cfg *pgconn.Config) []string {
		of := func(host string, port uint16, tls bool) string {
			return host + ":" + strconv.Itoa(int(port)) + " " + strconv.FormatBool(tls)
		}
		all := []string{of(cfg.Host, cfg.Port, cfg.TLSConfig != nil)}
		for _, f := range cfg.Fallbacks {
			all = append(all, of(f.Host, f.Port, f.TLSConfig != nil))
		}
		return all
	}
	h := &lastHost{}
	first := pg.Copy()
	hostOf := h.prefer(first)
	asGiven := []string{"a:1 true", "a:1 false", "b:2 true", "b:2 false", "c:3 true", "c:3 false"}
	if got := order(first); !slices.Equal(got, asGiven) {
		t.Errorf("without a connection: %q", got)
	}
	for _, host := range []string{"a", "b", "c"} {
		if _, err := first.LookupFunc(t.Context(), host); err != nil {
			t.Fatal(err)
		}
	}
	h.connected(hostOf("10.0.0.2:2"))
	next := pg.Copy()
	h.prefer(next)
	if got, want := order(next), []string{"b:2 true", "b:2 false", "a:1 true", "a:1 false", "c:3 true", "c:3 false"}; !slices.Equal(got, want) {
		t.Errorf("after a connection to b: %q, want %q", got, want)
	}
	if got := order(pg); !slices.Equal(got, asGiven) {
		t.Errorf("the caller's configuration has changed: %q", got)
	}
}
