//go:build linux || darwin

package check

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/check/servers"
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
	err := g.post(ctx, path, token, question, answer)
	if err == nil || ctx.Err() != nil || !administrated {
		return err
	}
	var login struct{ Token string }
	if err := g.post(ctx, "/v3/auth/authenticate", "", fmt.Sprintf(`{"name":%q,"password":%q}`, etcdRoot, etcdRootSecret), &login); err != nil {
		return err
	}
	g.mu.Lock()
	g.token = login.Token
	g.mu.Unlock()
	return g.post(ctx, path, login.Token, question, answer)
}

func (g *etcdGate) post(ctx context.Context, path, token, question string, answer any) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+g.m.Client+path, bytes.NewBufferString(question))
	if err != nil {
		return err
	}
	if token != "" {
		req.Header.Set("Authorization", token)
	}
	client := g.client
	if client == nil {
		client = &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	}
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	defer func() {
		_, _ = io.Copy(io.Discard, resp.Body) // reading to the end lets the client reuse the connection
		resp.Body.Close()
	}()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("check: etcd answers %s to %s", resp.Status, path)
	}
	return json.NewDecoder(resp.Body).Decode(answer)
}

// permit gives the user of the check the right READ, WRITE or READWRITE below the prefix.
func (g *etcdGate) permit(ctx context.Context, right string) error {
	encode := func(s string) string { return base64.StdEncoding.EncodeToString([]byte(s)) }
	end := etcdPrefix[:len(etcdPrefix)-1] + string(etcdPrefix[len(etcdPrefix)-1]+1)
	return g.request(ctx, "/v3/auth/role/grant", fmt.Sprintf(`{"name":%q,"perm":{"permType":%q,"key":%q,"range_end":%q}}`,
		etcdUser, right, encode(etcdPrefix), encode(end)), &struct{}{})
}

// addUsers creates the administrator and the user of the check, and switches authentication on.
func (g *etcdGate) addUsers(ctx context.Context) error {
	do := func(path, question string) error { return g.request(ctx, path, question, &struct{}{}) }
	for _, step := range []func() error{
		func() error {
			return do("/v3/auth/user/add", fmt.Sprintf(`{"name":%q,"password":%q}`, etcdRoot, etcdRootSecret))
		},
		func() error { return do("/v3/auth/role/add", `{"name":"root"}`) },
		func() error { return do("/v3/auth/user/grant", fmt.Sprintf(`{"user":%q,"role":"root"}`, etcdRoot)) },
		func() error {
			return do("/v3/auth/user/add", fmt.Sprintf(`{"name":%q,"password":%q}`, etcdUser, etcdPassword))
		},
		func() error { return do("/v3/auth/role/add", fmt.Sprintf(`{"name":%q}`, etcdUser)) },
		func() error { return g.permit(ctx, "READWRITE") },
		func() error {
			return do("/v3/auth/user/grant", fmt.Sprintf(`{"user":%q,"role":%q}`, etcdUser, etcdUser))
		},
		func() error { return do("/v3/auth/enable", `{}`) },
	} {
		if err := step(); err != nil {
			return err
		}
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.administrated = true
	return nil
}

// revokeEtcdRight takes the right to read or to write away from the user of the check.
func revokeEtcdRight(g *etcdGate) StoreFault {
	return StoreFault{
		Kind: "revoke-right",
		Begin: func(ctx context.Context, f Fault) error {
			return g.permit(context.WithoutCancel(ctx), []string{"WRITE", "READ"}[f.N%2])
		},
		End: func(ctx context.Context, _ Fault) error { return g.permit(ctx, "READWRITE") },
	}
}
