// Package postgres holds pgstore to the contract, on real servers.
package postgres

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/holdfast-go/holdfast/check/servers"
	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/driver/drivertest"
	"github.com/holdfast-go/holdfast/pgstore"
)

// shared is one server for the whole package.
var shared struct {
	once sync.Once
	s    *servers.Postgres
	err  error
}

func TestMain(m *testing.M) {
	code := m.Run()
	if shared.s != nil {
		_ = shared.s.Close()
	}
	os.Exit(code)
}

// postgres is the package's server; a test is skipped where there is none, or fails
// if there must be one.
func postgres(t testing.TB) *servers.Postgres {
	t.Helper()
	shared.once.Do(func() { shared.s, shared.err = servers.StartPostgres(context.Background(), "fsync=off") })
	if errors.Is(shared.err, servers.ErrNotInstalled) && os.Getenv("HOLDFAST_REQUIRE_SERVERS") != "1" {
		t.Skip(shared.err)
	}
	if shared.err != nil {
		t.Fatal(shared.err)
	}
	return shared.s
}

var schemas atomic.Int32

// schema makes an empty database with holdfast's tables and answers the URL of a store
// there, to which parameters may be added.
func schema(t testing.TB) (name string) {
	t.Helper()
	name = fmt.Sprintf("t%d", schemas.Add(1))
	admin(t, "postgres", "CREATE DATABASE "+name)
	s := open(t, postgres(t).Address, name, "recipe=optimistic")
	for range 2 { // it can be run again
		if err := s.Init(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	return name
}

func open(t testing.TB, address, schema, params string, o ...pgstore.Option) *pgstore.Store {
	t.Helper()
	s, err := pgstore.Open(context.Background(), fmt.Sprintf("postgres://postgres@%s/%s?sslmode=disable&%s", address, schema, params), o...)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestConformance(t *testing.T) {
	for _, recipe := range pgstore.Recipes() {
		t.Run(string(recipe), func(t *testing.T) {
			server := postgres(t)
			schema := schema(t)
			drivertest.Run(t, drivertest.Harness{
				Open: func(t testing.TB, ns string) driver.Store {
					return open(t, server.Address, schema, "recipe="+string(recipe), pgstore.Namespace(ns))
				},
				Stop: func(t testing.TB) {
					t.Cleanup(func() { _ = server.Cont() }) // also when the test ends before
					if err := server.Pause(); err != nil {
						t.Error(err)
					}
				},
				Start: func(t testing.TB) {
					if err := server.Cont(); err != nil {
						t.Error(err)
					}
				},
			})
		})
	}
}
