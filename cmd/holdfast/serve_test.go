//go:build linux || darwin

package main_test

import (
	"bufio"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"os"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"
)

// startServe starts serve with flags, and returns the URL that it prints.
func (w *sandbox) startServe(flags ...string) (*process, string) {
	w.t.Helper()
	p := w.start(append([]string{"serve", "--listen", "127.0.0.1:0"}, flags...)...)
	_, url, _ := strings.Cut(p.stderr.expect("serving on "), "serving on ")
	return p, url
}

// lend locks a name over HTTP. The lines of the stream arrive on the channel, which is closed at its end.
func (w *sandbox) lend(url, name string) (lines chan string, end context.CancelFunc) {
	w.t.Helper()
	ctx, cancel := context.WithCancel(w.t.Context())
	w.t.Cleanup(cancel)
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url+"v1/locks/"+name, nil)
	must(w.t, err)
	resp, err := http.DefaultClient.Do(req)
	must(w.t, err)
	lines = make(chan string, 16)
	go func() {
		defer close(lines)
		defer resp.Body.Close()
		for s := bufio.NewScanner(resp.Body); s.Scan(); {
			lines <- s.Text()
		}
	}()
	return lines, cancel
}

// awaitEvent waits for a line with an event.
func awaitEvent(t *testing.T, lines chan string, event string) {
	t.Helper()
	timeout := time.After(waitLimit())
	for {
		select {
		case line, ok := <-lines:
			if strings.Contains(line, `"event":"`+event+`"`) {
				return
			}
			if !ok {
				t.Fatalf("the stream has ended before %s", event)
			}
		case <-timeout:
			t.Fatalf("no %s", event)
		}
	}
}

// TestServeLendsLocks: a lock over HTTP excludes a run, and is free when its client, or the server, has ended.
func TestServeLendsLocks(t *testing.T) {
	w := withStore(t)
	p, url := w.startServe()
	lines, end := w.lend(url, "x")
	awaitEvent(t, lines, "granted")
	if got := w.run("run", "--try", "x", "--", "true"); got.status != 75 {
		t.Errorf("status %d: %s", got.status, got.stderr)
	}
	end()
	if got := w.run("run", "x", "--", "true"); got.status != 0 {
		t.Errorf("after the client: status %d: %s", got.status, got.stderr)
	}
	lines, _ = w.lend(url, "x")
	awaitEvent(t, lines, "granted")
	p.signal(syscall.SIGTERM)
	awaitEvent(t, lines, "lost")
	p.expectStatus(143)
	if got := w.run("ls"); got.stdout != "" {
		t.Errorf("after the server:\n%s", got.stdout)
	}

	p, url = w.startServe()
	lines, _ = w.lend(url, "x")
	awaitEvent(t, lines, "granted")
	must(t, p.cmd.Process.Kill())
	if got := w.run("run", "x", "--", "true"); got.status != 0 {
		t.Errorf("after the kill: status %d: %s", got.status, got.stderr)
	}
	for range lines { // the stream ends
	}
}

// TestServeNeedsCredentialsBeyondLoopback: serve refuses flags that would open the locks to other machines, and bad
// files, before it opens a store.
func TestServeNeedsCredentialsBeyondLoopback(t *testing.T) {
	w := withStore(t)
	bad := w.file("bad", "name sha256:12\n")
	good := w.file("clients", fmt.Sprintf("name sha256:%x see=\n", sha256.Sum256([]byte("t"))))
	for _, c := range []struct {
		want string
		args []string
	}{
		{"--clients, or --tls-client-ca", []string{"--listen", ":7345"}},
		{"--clients, or --tls-client-ca", []string{"--listen", "0.0.0.0:7345"}},
		{"--clients, or --tls-client-ca", []string{"--listen", "192.0.2.1:7345"}},
		{"give HOST:PORT", []string{"--listen", "7345"}},
		{"line 1: the hash of \"name\"", []string{"--clients", bad}},
		{"--clients: open", []string{"--clients", w.path("none")}},
		{"give both", []string{"--tls-cert", good}},
		{"give all three", []string{"--tls-client-ca", good}},
		{"--tls-cert, --tls-key:", []string{"--tls-cert", good, "--tls-key", good}},
		{"--store: unknown scheme", []string{"--store", "none://x"}},
		{"1 arguments", []string{"file:///tmp"}},
	} {
		if got := w.run(append([]string{"serve"}, c.args...)...); got.status != 64 || !strings.Contains(got.stderr, c.want) {
			t.Errorf("%q: status %d, %q; want %q", c.args, got.status, got.stderr, c.want)
		}
	}
	if _, err := os.Stat(w.path("locks")); err == nil {
		t.Error("a refused serve has opened the store")
	}
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	defer taken.Close()
	if got := w.run("serve", "--listen", taken.Addr().String()); got.status != 64 || !strings.Contains(got.stderr, "--listen") {
		t.Errorf("an address in use: status %d, %q", got.status, got.stderr)
	}
	_, url := w.startServe("--clients", good)
	for token, want := range map[string]int{"t": http.StatusOK, "u": http.StatusUnauthorized} {
		for _, path := range []string{"v1/locks", "metrics"} {
			req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url+path, nil)
			must(t, err)
			req.Header.Set("Authorization", "Bearer "+token)
			resp, err := http.DefaultClient.Do(req)
			must(t, err)
			resp.Body.Close()
			if resp.StatusCode != want {
				t.Errorf("%s with token %s: %d", path, token, resp.StatusCode)
			}
		}
	}
}

// TestServeHasMetrics: Prometheus gets the held locks, the waiters and the longest wait, and no names.
func TestServeHasMetrics(t *testing.T) {
	w := withStore(t)
	_, url := w.startServe()
	held, _ := w.lend(url, "secret")
	awaitEvent(t, held, "granted")
	waiting, _ := w.lend(url, "secret")
	awaitEvent(t, waiting, "queued")
	want := regexp.MustCompile(`(?s)\nholdfast_locks_held\{.*\} 1\n` +
		`.*\nholdfast_wait_longest_seconds 0*\.?0*[1-9].*\nholdfast_waits 1\n`)
	text := ""
	// The wait begins after the line about it.
	for end := time.Now().Add(waitLimit()); !want.MatchString(text); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("metrics: %s", text)
		}
		resp, err := http.Get(url + "metrics")
		must(t, err)
		b, err := io.ReadAll(resp.Body)
		must(t, err)
		resp.Body.Close()
		text = string(b)
	}
	if strings.Contains(text, "secret") {
		t.Errorf("the metrics have the name of a lock: %s", text)
	}
}

// TestServeRequiresClientCertificates: with --tls-client-ca a client without a certificate of the authority gets no
// answer, and the others have the rights of their line.
func TestServeRequiresClientCertificates(t *testing.T) {
	w := withStore(t)
	authority := newCertificate(t, "authority", nil)
	server, alice := newCertificate(t, "server.example", authority), newCertificate(t, "alice.example", authority)
	stranger := newCertificate(t, "alice.example", nil)
	_, url := w.startServe("--tls-cert", w.file("cert", server.certPEM), "--tls-key", w.file("key", server.keyPEM),
		"--tls-client-ca", w.file("ca", authority.certPEM), "--clients", w.file("clients", "alice cert:alice.example see=\n"))
	roots := x509.NewCertPool()
	roots.AddCert(authority.cert)
	for name, c := range map[string]struct {
		with   *certificate
		path   string
		method string
		want   int
	}{
		"alice sees":         {alice, "v1/locks", http.MethodGet, http.StatusOK},
		"alice may not lock": {alice, "v1/grants/x", http.MethodPost, http.StatusForbidden},
		"no other sees":      {server, "v1/locks", http.MethodGet, http.StatusUnauthorized},
		"a stranger":         {stranger, "v1/locks", http.MethodGet, 0},
		"no certificate":     {nil, "v1/locks", http.MethodGet, 0},
	} {
		config := &tls.Config{RootCAs: roots, ServerName: "server.example"}
		if c.with != nil {
			config.Certificates = []tls.Certificate{{Certificate: [][]byte{c.with.cert.Raw}, PrivateKey: c.with.key}}
		}
		client := &http.Client{Transport: &http.Transport{TLSClientConfig: config}}
		req, err := http.NewRequestWithContext(t.Context(), c.method, url+c.path, nil)
		must(t, err)
		got := 0
		if resp, err := client.Do(req); err == nil {
			resp.Body.Close()
			got = resp.StatusCode
		}
		client.CloseIdleConnections()
		if got != c.want {
			t.Errorf("%s: %d, want %d", name, got, c.want)
		}
	}
}

type certificate struct {
	cert            *x509.Certificate
	key             *ecdsa.PrivateKey
	certPEM, keyPEM string
}

// newCertificate makes a certificate that an authority has signed, or that has signed itself.
func newCertificate(t *testing.T, name string, by *certificate) *certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(t, err)
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name},
		DNSNames: []string{name}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		BasicConstraintsValid: true, IsCA: by == nil, KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign}
	parent, signer := template, key
	if by != nil {
		parent, signer = by.cert, by.key
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, signer)
	must(t, err)
	cert, err := x509.ParseCertificate(der)
	must(t, err)
	private, err := x509.MarshalPKCS8PrivateKey(key)
	must(t, err)
	return &certificate{cert, key, string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})),
		string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private}))}
}
