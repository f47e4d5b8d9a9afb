package console_test

import (
	"context"
	"log"
	"net/http"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/console"
	"github.com/holdfast-go/holdfast/memstore"
)

// The service mounts the page at /locks/. Every user may see the locks, and an administrator may break them.
func ExampleHandler() {
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	locker, err := holdfast.New(memstore.New())
	if err != nil {
		log.Fatal(err)
	}
	all := []string{""}
	handler, err := console.Handler(ctx, map[string]*holdfast.Locker{"main": locker}, console.Options{
		Client: func(r *http.Request) (console.Client, bool) {
			user, role := r.Header.Get("X-User"), r.Header.Get("X-Role") // from the proxy that authenticates
			c := console.Client{Name: user, See: all}
			if role == "admin" {
				c.Break = all
			}
			return c, user != ""
		},
	})
	if err != nil {
		log.Fatal(err)
	}
	http.Handle("/locks/", http.StripPrefix("/locks", handler))
}
