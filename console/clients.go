package console

import (
	"bufio"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/holdfast-go/holdfast"
)

// credential is a line of a file of clients.
type credential struct {
	hash []byte // of the bearer token
	cert string // or a name in the client's certificate
	Client
}

// ReadClients reads clients and their rights, and returns a function for Options.Client. A line is a client: its name,
// a credential, and any number of rights:
//
//	ci     sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08 see= lock=ci/
//	alice  cert:alice.example see= break=
//
// The credential is the SHA-256 hash of a bearer token, or a name in a client certificate that the server's TLS has
// verified: its common name, or a DNS name of it. A right is see, lock or break, and the prefix of the names that
// it applies to; a percent sign or a space in a prefix is written as in a URL. Empty lines and those that begin
// with # are ignored.
//
// Tokens must be random, such as those of `openssl rand -hex 32`: the hash of a short one can be reversed.
func ReadClients(r io.Reader) (func(*http.Request) (Client, bool), error) {
	var all []credential
	lines := bufio.NewScanner(r)
	for n := 1; lines.Scan(); n++ {
		words := strings.Fields(lines.Text())
		if len(words) == 0 || strings.HasPrefix(words[0], "#") {
			continue
		}
		c, err := readClient(words)
		if err != nil {
			return nil, fmt.Errorf("console: %w: line %d: %w", holdfast.ErrInvalid, n, err)
		}
		all = append(all, c)
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("console: %w: %w", holdfast.ErrInvalid, err)
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("console: %w: there is no client", holdfast.ErrInvalid)
	}
	return func(r *http.Request) (Client, bool) { return find(all, r) }, nil
}

// readClient reads the words of a line. Its errors do not quote the credential.
func readClient(words []string) (c credential, err error) {
	c.Name = words[0]
	if len(words) < 2 {
		return c, fmt.Errorf("%q has no credential: give sha256:HASH or cert:NAME", c.Name)
	}
	kind, secret, _ := strings.Cut(words[1], ":")
	switch kind {
	case "sha256":
		if c.hash, err = hex.DecodeString(secret); err != nil || len(c.hash) != sha256.Size {
			return c, fmt.Errorf("the hash of %q: give %d hexadecimal digits", c.Name, 2*sha256.Size)
		}
	case "cert":
		if c.cert = secret; secret == "" {
			return c, fmt.Errorf("the certificate of %q has no name", c.Name)
		}
	default:
		return c, fmt.Errorf("the credential of %q: give sha256:HASH or cert:NAME", c.Name)
	}
	rights := map[string]*[]string{"see": &c.See, "lock": &c.Lock, "break": &c.Break}
	for _, word := range words[2:] {
		right, prefix, ok := strings.Cut(word, "=")
		prefix, err := url.PathUnescape(prefix)
		prefixes := rights[right]
		if !ok || err != nil || prefixes == nil {
			return c, fmt.Errorf("%q of %q: give see=PREFIX, lock=PREFIX or break=PREFIX", word, c.Name)
		}
		*prefixes = append(*prefixes, prefix)
	}
	return c, nil
}

// find returns the client of a request. It compares the hash of the token with every hash, in constant time.
func find(all []credential, r *http.Request) (found Client, ok bool) {
	token, bearer := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	hash := sha256.Sum256([]byte(token))
	var names []string
	if r.TLS != nil && len(r.TLS.VerifiedChains) > 0 {
		leaf := r.TLS.VerifiedChains[0][0]
		names = slices.Concat(leaf.DNSNames, []string{leaf.Subject.CommonName}) // other requests may read leaf
	}
	for _, c := range all {
		same := subtle.ConstantTimeCompare(c.hash, hash[:]) == 1
		if bearer && same || !bearer && c.cert != "" && slices.Contains(names, c.cert) {
			found, ok = c.Client, true
		}
	}
	return found, ok
}
