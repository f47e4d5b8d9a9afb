package console_test

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/console"
	"github.com/holdfast-go/holdfast/memstore"
)

const secret = "4f9c-not-a-real-token"

// clients has a client for each right.
func clients(t *testing.T) console.Options {
	t.Helper()
	hash := func(token string) string { return fmt.Sprintf("sha256:%x", sha256.Sum256([]byte(token))) }
	find, err := console.ReadClients(strings.NewReader("# clients\n\n" +
		"boss " + hash(secret) + " see= lock= break=\n" +
		"seer " + hash("see") + " see=a/ see=b/\n" +
		"user " + hash("lock") + " see= lock=a%20b/\n" +
		"cert cert:alice.example see=\n"))
	must(t, err)
	return console.Options{Client: find}
}

// TestRefusals tries each refusal: the client gets the code, and the log a line without the token.
func TestRefusals(t *testing.T) {
	o := clients(t)
	o.Hosts = []string{"127.0.0.1"}
	s, _ := memory(t, o)
	k, err := s.locker.Lock(t.Context(), "a/1")
	must(t, err)
	seen, err := s.locker.Lock(t.Context(), "c/1")
	must(t, err)
	s.token = secret
	owned := s.want(200, "", "POST", "/v1/grants/g", nil).ID
	for name, c := range map[string]struct {
		token, method, path string
		body                any
		head                map[string]string
		status              int
		code                string
	}{
		"no token":                 {"", "GET", "/v1/locks", nil, nil, 401, "unauthorized"},
		"a wrong token":            {"wrong", "GET", "/v1/stores", nil, nil, 401, "unauthorized"},
		"the hash as the token":    {fmt.Sprintf("%x", sha256.Sum256([]byte(secret))), "GET", "/v1/locks", nil, nil, 401, "unauthorized"},
		"basic authentication":     {"", "GET", "/v1/locks", nil, map[string]string{"Authorization": "Basic " + secret}, 401, "unauthorized"},
		"a token without Bearer":   {"", "GET", "/v1/locks", nil, map[string]string{"Authorization": secret}, 401, "unauthorized"},
		"a page without a token":   {"", "GET", "/v1/events", nil, nil, 401, "unauthorized"},
		"another name":             {"see", "GET", "/v1/locks/c%2F1", nil, nil, 403, "forbidden"},
		"events of another name":   {"see", "GET", "/v1/events?name=c/1", nil, nil, 403, "forbidden"},
		"a value of another name":  {"see", "GET", "/v1/values/c%2F1", nil, nil, 403, "forbidden"},
		"no right to lock":         {"see", "POST", "/v1/locks/a%2F1", object{}, nil, 403, "forbidden"},
		"no right to a grant":      {"see", "POST", "/v1/grants/a%2F1", object{}, nil, 403, "forbidden"},
		"another prefix":           {"lock", "POST", "/v1/grants/a", object{}, nil, 403, "forbidden"},
		"no right to write":        {"lock", "PUT", "/v1/values/x", object{}, nil, 403, "forbidden"},
		"no right to a guard":      {"lock", "POST", "/v1/guards/x", object{}, nil, 403, "forbidden"},
		"no right to a sequence":   {"lock", "POST", "/v1/sequences/x", nil, nil, 403, "forbidden"},
		"no right to break":        {"lock", "POST", "/v1/break", object{"name": "a/1", "token": "1", "reason": "r"}, nil, 403, "forbidden"},
		"the grant of another":     {"lock", "POST", "/v1/renew/" + owned, nil, nil, 404, "not_held"},
		"release of another":       {"lock", "POST", "/v1/release/" + owned, nil, nil, 404, "not_held"},
		"a guessed grant":          {secret, "POST", "/v1/release/x", nil, nil, 404, "not_held"},
		"a page of another site":   {secret, "GET", "/v1/locks", nil, map[string]string{"Origin": "https://evil.example"}, 403, "origin"},
		"a forged break":           {secret, "POST", "/v1/break", object{}, map[string]string{"Sec-Fetch-Site": "cross-site"}, 403, "origin"},
		"a forged read":            {secret, "GET", "/v1/events", nil, map[string]string{"Sec-Fetch-Site": "cross-site"}, 403, "origin"},
		"an opaque origin":         {secret, "POST", "/v1/break", object{}, map[string]string{"Origin": "null"}, 403, "origin"},
		"another host":             {secret, "GET", "/v1/locks", nil, map[string]string{"Host": "evil.example"}, 403, "host"},
		"the page at another host": {"", "GET", "/", nil, map[string]string{"Host": "evil.example:80"}, 403, "host"},
		"a form":                   {secret, "POST", "/v1/grants/x", object{}, map[string]string{"Content-Type": "application/x-www-form-urlencoded"}, 415, "media_type"},
		"an unknown field":         {secret, "POST", "/v1/grants/x", object{"tll": 3}, nil, 400, "invalid"},
		"a wrong type":             {secret, "POST", "/v1/grants/x", object{"limit": "many"}, nil, 400, "invalid"},
		"a negative time":          {secret, "POST", "/v1/grants/x", object{"ttl_seconds": -1}, nil, 400, "invalid"},
		"an endless time":          {secret, "POST", "/v1/locks/x", object{"wait_seconds": 1e300}, nil, 400, "invalid"},
		"a short TTL":              {secret, "POST", "/v1/grants/x", object{"ttl_seconds": 0.001}, nil, 400, "invalid"},
		"a long wait for a grant":  {secret, "POST", "/v1/grants/x", object{"wait_seconds": 61}, nil, 400, "invalid"},
		"a long reason":            {secret, "POST", "/v1/grants/x", object{"reason": strings.Repeat("r", 513)}, nil, 400, "invalid"},
		"a long name":              {secret, "POST", "/v1/grants/" + strings.Repeat("n", 513), nil, nil, 400, "invalid"},
		"a name with NUL":          {secret, "POST", "/v1/locks/a%00", nil, nil, 400, "invalid"},
		"a name that is no UTF-8":  {secret, "GET", "/v1/locks/%ff", nil, nil, 400, "invalid"},
		"a long body":              {secret, "POST", "/v1/grants/x", object{"reason": strings.Repeat("r", 1<<15)}, nil, 413, "too_large"},
		"a long value":             {secret, "PUT", "/v1/values/x", object{"data": make([]byte, 512<<10+1)}, nil, 400, "invalid"},
		"an unknown store":         {secret, "GET", "/v1/locks?store=other", nil, nil, 400, "invalid"},
		"an unknown order":         {secret, "GET", "/v1/events?sort=size", nil, nil, 400, "invalid"},
		"a negative offset":        {secret, "GET", "/v1/events?offset=-1", nil, nil, 400, "invalid"},
		"a token that is none":     {secret, "POST", "/v1/break", object{"name": "a/1", "token": "x", "reason": "r"}, nil, 400, "invalid"},
	} {
		s.token = c.token
		req := s.request(t.Context(), c.method, c.path, c.body)
		for k, v := range c.head {
			req.Header.Set(k, v)
		}
		if host := req.Header.Get("Host"); host != "" {
			req.Host = host
		}
		resp, err := s.client.Do(req)
		must(t, err)
		b, err := io.ReadAll(resp.Body)
		must(t, err)
		resp.Body.Close()
		if resp.StatusCode != c.status || !bytes.Contains(b, []byte(`"code":"`+c.code+`"`)) {
			t.Errorf("%s: %d %s, want %d %s", name, resp.StatusCode, b, c.status, c.code)
		}
		if bytes.Contains(b, []byte(secret)) {
			t.Errorf("%s: the answer has the token: %s", name, b)
		}
		if refused := c.status == 401 || c.status == 403; refused && !strings.Contains(s.log.String(), "code="+c.code) {
			t.Errorf("%s: not in the log", name)
		}
	}
	if log := s.log.String(); strings.Contains(log, secret) || !strings.Contains(log, "client=seer") {
		t.Errorf("log: %s", log)
	}
	must(t, k.Unlock())
	must(t, seen.Unlock())
}

// TestClientSeesItsPrefixesOnly: lists, pages and counts omit other names.
func TestClientSeesItsPrefixesOnly(t *testing.T) {
	s, _ := memory(t, clients(t))
	for _, name := range []string{"a/1", "b/1", "c/1"} {
		_, err := s.locker.Lock(t.Context(), name)
		must(t, err)
	}
	s.token = "see"
	if m := s.want(200, "", "GET", "/v1/locks", nil); len(m.Locks) != 2 || m.Locks[1].Name != "b/1" {
		t.Errorf("%+v", m.Locks)
	}
	p := s.page("")
	u := p.next()
	for u.Total == 0 {
		u = p.next()
	}
	if u.Total != 2 || u.Stores[0].Held != 2 {
		t.Errorf("%+v", u)
	}
	s.token = "lock"
	if m := s.want(200, "", "POST", "/v1/grants/a%20b%2Fc", nil); m.Token == "" {
		t.Error("no grant below the prefix")
	}
}

// TestDefaultSeesOnly: without a function for clients, no client may lock or break.
func TestDefaultSeesOnly(t *testing.T) {
	l, err := holdfast.New(memstore.New())
	must(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	h, err := console.Handler(ctx, map[string]*holdfast.Locker{"m": l}, console.Options{Log: slog.New(slog.DiscardHandler)})
	must(t, err)
	for path, want := range map[string]int{"GET /v1/locks": 200, "POST /v1/grants/x": 403, "POST /v1/locks/x": 403} {
		method, path, _ := strings.Cut(path, " ")
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest(method, path, nil))
		if w.Code != want {
			t.Errorf("%s: %d", path, w.Code)
		}
	}
	cancel()
	must(t, l.Close(t.Context()))
}

// TestCertificateIsAClient: a verified certificate is a client, by one of its names.
func TestCertificateIsAClient(t *testing.T) {
	find := clients(t).Client
	verified := func(c *x509.Certificate) *tls.ConnectionState {
		return &tls.ConnectionState{PeerCertificates: []*x509.Certificate{c}, VerifiedChains: [][]*x509.Certificate{{c}}}
	}
	alice := &x509.Certificate{DNSNames: []string{"alice.example"}}
	for name, c := range map[string]struct {
		state  *tls.ConnectionState
		bearer string
		want   string
	}{
		"a DNS name":          {verified(alice), "", "cert"},
		"a common name":       {verified(&x509.Certificate{Subject: pkix.Name{CommonName: "alice.example"}}), "", "cert"},
		"another name":        {verified(&x509.Certificate{DNSNames: []string{"mallory.example"}}), "", ""},
		"not verified":        {&tls.ConnectionState{PeerCertificates: []*x509.Certificate{alice}}, "", ""},
		"no certificate":      {&tls.ConnectionState{}, "", ""},
		"a wrong token first": {verified(alice), "Bearer wrong", ""},
		"an empty token":      {verified(alice), "Bearer ", ""},
	} {
		r := httptest.NewRequest("GET", "/", nil)
		r.TLS = c.state
		if c.bearer != "" {
			r.Header.Set("Authorization", c.bearer)
		}
		if got, ok := find(r); got.Name != c.want || ok != (c.want != "") {
			t.Errorf("%s: %q", name, got.Name)
		}
	}
}

// TestBadClientsAreRefused: an error names the line and never quotes the credential.
func TestBadClientsAreRefused(t *testing.T) {
	hash := fmt.Sprintf("sha256:%x", sha256.Sum256(nil))
	for in, want := range map[string]string{
		"":                        "there is no client",
		"name":                    "line 1: \"name\" has no credential",
		"\nname sha256:1234":      "line 2: the hash of \"name\"",
		"name cert:":              "has no name",
		"name " + secret:          "the credential of \"name\"",
		"name " + hash + " see":   "give see=PREFIX",
		"name " + hash + " own=x": "give see=PREFIX",
		"name " + hash + " see=%": "give see=PREFIX",
	} {
		_, err := console.ReadClients(strings.NewReader(in))
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), secret) {
			t.Errorf("%q: %v, want %q", in, err, want)
		}
	}
	for _, o := range []console.Options{{Streams: -1}} {
		if _, err := console.Handler(t.Context(), map[string]*holdfast.Locker{"m": nil}, o); err == nil {
			t.Errorf("%+v", o)
		}
	}
	if _, err := console.Handler(t.Context(), nil, console.Options{}); err == nil {
		t.Error("no store")
	}
}

// FuzzRequest sends any request to a handler. None may panic, or hold a lock after it has ended.
func FuzzRequest(f *testing.F) {
	for _, path := range []string{"/", "/v1/locks/a", "/v1/grants/%2e%2e", "/v1/break", "/v1/values/v", "/v1/events?name=a&sort=ttl",
		"/v1/renew/x", "/v1/sequences/s", "/v1/guards/g", "//v1/locks", "/v1/openapi.json", "/\xdb"} {
		for _, body := range []string{"", `{"ttl_seconds":1,"wait_seconds":0,"limit":2,"reason":"r"}`, `{"name":"a","token":"1","reason":"r"}`,
			`{"data":"aGk=","version":""}`, `{"limit":1}{"limit":1}`, "[1", `{"ttl_seconds":1e999}`} {
			f.Add("POST", path, body)
			f.Add("GET", path, body)
			f.Add("PUT", path, body)
		}
	}
	l, err := holdfast.New(memstore.New())
	if err != nil {
		f.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	h, err := console.Handler(ctx, map[string]*holdfast.Locker{"m": l}, console.Options{Client: everything, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { cancel(); _ = l.Close(context.Background()) })
	f.Fuzz(func(t *testing.T, method, path, body string) {
		text := fmt.Sprintf("%s %s HTTP/1.1\r\nHost: h\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", method, path, len(body), body)
		r, err := http.ReadRequest(bufio.NewReader(strings.NewReader(text)))
		if err != nil {
			return
		}
		limited, end := context.WithTimeout(t.Context(), 10*time.Millisecond)
		defer end()
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r.WithContext(limited))
		if w.Code == http.StatusInternalServerError {
			t.Errorf("%q: %s", text, w.Body)
		}
	})
}
