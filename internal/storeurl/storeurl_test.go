package storeurl_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/holdfast-go/holdfast/internal/storeurl"
)

// TestListsOfIPv6AddressesAreRead: net/url refuses a list of hosts with an IPv6 address.
func TestListsOfIPv6AddressesAreRead(t *testing.T) {
	for raw, host := range map[string]string{
		"s://[::1]:1,[::2]:2/p":              "[::1]:1,[::2]:2",
		"s://[::1],[fe80::1%25eth0]":         "[::1],[fe80::1%25eth0]",
		"s://u:p%40@127.0.0.1:1,[::2]:2?a=b": "127.0.0.1:1,[::2]:2",
		"s://[::1]:1,h/p":                    "[::1]:1,h",
		"s://a:1,b:2/p":                      "a:1,b:2",
		"s://[::1]/[,]":                      "[::1]",
		"s://[::1]:1,[::2":                   "",
		"s://[::1]:1,[::2]x":                 "",
		"s://[::1]:1,[::2]:x":                "",
		"s://[::1]:1,[g]":                    "",
		"s://u:[,@h:x":                       "",
	} {
		u, err := storeurl.Read(raw)
		switch {
		case (err == nil) != (host != ""):
			t.Errorf("%s: %v, %v", raw, u, err)
		case err == nil && u.Host != host:
			t.Errorf("%s: the host is %q", raw, u.Host)
		}
	}
	u, err := storeurl.Read("s://u:p%40@127.0.0.1:1,[::2]:2/p?a=b")
	if password, _ := u.User.Password(); err != nil || password != "p@" || u.Path != "/p" || u.RawQuery != "a=b" {
		t.Errorf("%v, %v", u, err)
	}
}

// TestErrorsNameTheMistake: an error names each mistake in a URL, and quotes no part of a
// password.
func TestErrorsNameTheMistake(t *testing.T) {
	for raw, says := range map[string]string{
		"s://h?a=1&b=2&tls=true":          "",
		"s://h?a=1&c=2":                   `unknown parameter "c": there are a, b, ca, cert, key, server_name, tls`,
		"s://h?a=1&a=2":                   "a is given more than once",
		"s://h?a=":                        "a is empty",
		"s://h?a=1&SeCrEt":                "and & as %26",
		"s://h?a=x":                       `a "x": give a number`,
		"s://h?b=x":                       `b "x": give p or 2`,
		"s:h":                             "give s://host",
		"s://h#x":                         "write # as %23",
		"s://h?tls=true&cert=x":           "cert and key together",
		"s://h?tls=true&ca=/does/not":     "ca: ",
		"s://h?ca=x":                      "are for TLS: give tls=true",
		"s://u:1?SeCrEt@h":                "write ? in a password as %3F",
		"s://u:1?SeCrEt@h&SeCrEt@h":       "write ? in a password as %3F",
		"s://u:1?a=%zz":                   "cannot be read",
		"s://h?tls=true&key=x":            "cert and key together",
		"s://h?tls=true&key=/x&cert=/y":   "cert and key: ",
		"s://h?tls=true&server_name=here": "",
	} {
		err := read(raw)
		if (err == nil) != (says == "") || err != nil && (!strings.Contains(err.Error(), says) || strings.Contains(err.Error(), "SeCrEt")) {
			t.Errorf("%s: %v; want %q", raw, err, says)
		}
	}
	if _, err := storeurl.Parse("s://u:SeCrEt@h/%zz", "s"); err == nil || strings.Contains(err.Error(), "SeCrEt") {
		t.Error(err)
	}
}

func read(raw string) error {
	u, err := url.Parse(raw)
	if err != nil {
		return err
	}
	p, err := storeurl.Query(u, "s://host")
	if err != nil {
		return err
	}
	p.Int("a", 0)
	p.Choose("b", "p", "2")
	p.TLS(p.Choose("tls", "false", "true"), "give tls=true")
	return p.End()
}

// TestAuthorityIsReadAgain: each configuration has the certificates that the file of the authority has then. While it has
// none, it has the last ones.
func TestAuthorityIsReadAgain(t *testing.T) {
	file := filepath.Join(t.TempDir(), "ca.pem")
	write := func(text []byte) {
		if err := os.WriteFile(file, text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	authority := func() (*x509.CertPool, []byte) {
		key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		c := &x509.Certificate{SerialNumber: big.NewInt(1)}
		der, err := x509.CreateCertificate(rand.Reader, c, c, &key.PublicKey, key)
		if err != nil {
			t.Fatal(err)
		}
		text := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
		pool := x509.NewCertPool()
		pool.AppendCertsFromPEM(text)
		return pool, text
	}
	old, text := authority()
	write(text)
	u, _ := url.Parse("s://h?server_name=here&ca=" + url.QueryEscape(file))
	p, err := storeurl.Query(u, "s://host")
	if err != nil {
		t.Fatal(err)
	}
	config := p.TLS(true, "")
	if err := p.End(); err != nil {
		t.Fatal(err)
	}
	has := func(want *x509.CertPool) {
		t.Helper()
		if c := config(); !c.RootCAs.Equal(want) || c.ServerName != "here" || c.InsecureSkipVerify {
			t.Error("the configuration has other certificates")
		}
	}
	has(old)
	next, text := authority()
	write(text)
	has(next)
	write(text[:len(text)/2])
	has(next)
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	has(next)
}
