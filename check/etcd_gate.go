//go:build linux || darwin

package check

import (
	"context"
	"encoding/base64"
	"fmt"
	"net/http"
	"sync"

	"github.com/holdfast-go/holdfast/internal/servers"
)

// etcdGate sends requests to a member through its JSON gateway, as the administrator where the
// member has users.
type etcdGate struct {
	m *servers.Etcd
	// client keeps its connections, if set.
	client *http.Client

	mu            sync.Mutex
	administrated bool
	token         string
}

// The user of a check has exactly the documented rights: to read and to write keys with the
// prefix.
const (
	etcdUser, etcdPassword   = "check", "check"
	etcdRoot, etcdRootSecret = "root", "root"
	etcdPrefix               = "check/"
)

// request sends a request. If it fails, request logs in and sends it again. After a restart
// a member refuses old tokens, and a restored member does not answer a call with a newer
// token.
func (g *etcdGate) request(ctx context.Context, path, question string, answer any) error {
	g.mu.Lock()
	token, administrated := g.token, g.administrated
	g.mu.Unlock()
	err := g.m.Post(ctx, g.client, path, token, question, answer)
	if err == nil || ctx.Err() != nil || !administrated {
		return err
	}
	var login struct{ Token string }
	admin := fmt.Sprintf(`{"name":%q,"password":%q}`, etcdRoot, etcdRootSecret)
	if err := g.m.Post(ctx, g.client, "auth/authenticate", "", admin, &login); err != nil {
		return err
	}
	g.mu.Lock()
	g.token = login.Token
	g.mu.Unlock()
	return g.m.Post(ctx, g.client, path, login.Token, question, answer)
}

// do sends a request whose answer says nothing more than that it succeeded.
func (g *etcdGate) do(ctx context.Context, path, question string) error {
	return g.request(ctx, path, question, &struct{}{})
}

// permit gives the user of the check the right READ, WRITE or READWRITE below the prefix.
func (g *etcdGate) permit(ctx context.Context, right string) error {
	encode := func(s string) string { return base64.StdEncoding.EncodeToString([]byte(s)) }
	end := etcdPrefix[:len(etcdPrefix)-1] + string(etcdPrefix[len(etcdPrefix)-1]+1)
	return g.do(ctx, "auth/role/grant", fmt.Sprintf(`{"name":%q,"perm":{"permType":%q,"key":%q,"range_end":%q}}`,
		etcdUser, right, encode(etcdPrefix), encode(end)))
}

// addUsers creates the administrator and the user of the check, and switches authentication on.
func (g *etcdGate) addUsers(ctx context.Context) error {
	for _, u := range [][2]string{{etcdRoot, etcdRootSecret}, {etcdUser, etcdPassword}} { // each has a role with its name
		err := g.do(ctx, "auth/user/add", fmt.Sprintf(`{"name":%q,"password":%q}`, u[0], u[1]))
		if err == nil {
			err = g.do(ctx, "auth/role/add", fmt.Sprintf(`{"name":%q}`, u[0]))
		}
		if err == nil {
			err = g.do(ctx, "auth/user/grant", fmt.Sprintf(`{"user":%q,"role":%[1]q}`, u[0]))
		}
		if err != nil {
			return err
		}
	}
	if err := g.permit(ctx, "READWRITE"); err != nil {
		return err
	}
	err := g.do(ctx, "auth/enable", `{}`)
	g.mu.Lock()
	defer g.mu.Unlock()
	g.administrated = err == nil
	return err
}
