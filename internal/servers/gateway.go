//go:build linux || darwin

package servers

import (
	"context"
	"fmt"
	"net/http"
	"path/filepath"
	"slices"
)

// Gateway is a server of `holdfast serve`.
type Gateway struct {
	*Server
	// Address is the server's HOST:PORT.
	Address string
}

// StartGateway starts `holdfast serve` over the store of a URL. program is the command, and env an addition to its
// environment.
func StartGateway(ctx context.Context, dir, program, store string, env ...string) (*Gateway, error) {
	return retryStart(ctx, func() (*Gateway, error) {
		port, err := FreePort()
		if err != nil {
			return nil, err
		}
		g := &Gateway{Address: fmt.Sprintf("127.0.0.1:%d", port)}
		g.Server, err = Start(ctx, Config{
			Name: "holdfast serve", Dir: filepath.Join(dir, fmt.Sprint(port)), Env: slices.Clone(env),
			Command: []string{program, "serve", "--store", store, "--listen", g.Address},
			Ready:   Serves(http.MethodGet, "http://"+g.Address+"/v1/stores", http.StatusOK),
		})
		return g, err
	})
}
