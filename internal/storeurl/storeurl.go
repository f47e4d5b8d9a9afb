// Package storeurl reads what the URLs of stores have in common: parameters that are
// given once, and the files of TLS. No error quotes what may hold a password. The
// caller adds the name of its store and the code CodeInvalid.
package storeurl

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"
)

// Read parses a URL like [url.Parse], and also one with a list of hosts that contains IPv6 addresses, as in
// etcd://[::1]:2379,[::2]:2379/.
func Read(raw string) (*url.URL, error) {
	u, err := url.Parse(raw)
	scheme, rest, found := strings.Cut(raw, "://")
	end := strings.IndexAny(rest, "/?#")
	if end < 0 {
		end = len(rest)
	}
	hosts := rest[:end]
	user := hosts[:strings.LastIndex(hosts, "@")+1]
	hosts = hosts[len(user):]
	if err == nil || !found || !strings.Contains(hosts, "[") || !strings.Contains(hosts, ",") {
		return u, err
	}
	for host := range strings.SplitSeq(hosts, ",") {
		if _, err := url.Parse("x://" + host); err != nil {
			return nil, err
		}
	}
	if u, err = url.Parse(scheme + "://" + user + "x" + rest[end:]); err == nil {
		u.Host = hosts
	}
	return u, err
}

// Parse reads a URL that has one of the schemes.
func Parse(raw string, schemes ...string) (*url.URL, error) {
	u, err := Read(raw)
	if err != nil || !slices.Contains(schemes, u.Scheme) {
		return nil, fmt.Errorf("not a URL of scheme %s; write special characters in a password as %%XX", strings.Join(schemes, " or "))
	}
	return u, nil
}

// Params are the parameters of a URL that have not been taken out yet. They keep the first error, which End and Rest
// return. A method that finds an error returns what it returns without the parameter.
type Params struct {
	values url.Values
	known  []string
	empty  string // a parameter that was taken out and had no value
	err    error
}

// Query returns the parameters of u. Each may be given once, apart from the repeated
// ones. The form shows how URLs of the store look.
func Query(u *url.URL, form string, repeated ...string) (*Params, error) {
	values, err := url.ParseQuery(u.RawQuery)
	switch {
	case err != nil:
		return nil, errors.New("the parameters cannot be read")
	case u.Opaque != "":
		return nil, fmt.Errorf("give %s", form)
	case u.Fragment != "":
		return nil, fmt.Errorf("give %s; write # as %%23, and other special characters in a password as %%XX", form)
	}
	for pair := range strings.SplitSeq(u.RawQuery, "&") {
		if pair != "" && !strings.Contains(pair, "=") {
			return nil, errors.New("a parameter has no value; write ? in a password as %3F, and & as %26")
		}
	}
	for key, all := range values {
		if len(all) != 1 && !slices.Contains(repeated, key) {
			return nil, fmt.Errorf("%s is given more than once", shown(key))
		}
	}
	return &Params{values: values}, nil
}

// fail keeps an error, unless there is an earlier one.
func (p *Params) fail(err error) {
	if p.err == nil {
		p.err = err
	}
}

// shown returns the name of a parameter as an error may quote it. If a password contains a ?,
// the rest of the password looks like a parameter.
func shown(key string) string {
	if strings.ContainsAny(key, "@:/") {
		return "a parameter (write ? in a password as %3F)"
	}
	return "parameter " + key
}

// TakeAll takes all values of a parameter out.
func (p *Params) TakeAll(key string) []string {
	all := p.values[key]
	if slices.Contains(all, "") {
		p.empty = key
	}
	p.values.Del(key)
	p.known = append(p.known, key)
	return all
}

// Take takes a parameter out. It returns "" if the parameter is not there.
func (p *Params) Take(key string) string {
	if all := p.TakeAll(key); len(all) > 0 {
		return all[0]
	}
	return ""
}

// Choose takes a parameter out and reports whether its value is yes. Without the
// parameter it is no.
func (p *Params) Choose(key, no, yes string) bool {
	v := p.Take(key)
	if v != "" && v != no && v != yes {
		p.fail(fmt.Errorf("%s %q: give %s or %s", key, v, no, yes))
	}
	return v == yes
}

// Int takes a number out, or returns without if the parameter is not there.
func (p *Params) Int(key string, without int) int {
	v := p.Take(key)
	if v == "" {
		return without
	}
	n, err := strconv.Atoi(v)
	if err != nil {
		p.fail(fmt.Errorf("%s %q: give a number", key, v))
		return without
	}
	return n
}

// Duration takes a duration out, or returns without if the parameter is not there.
func (p *Params) Duration(key string, without time.Duration) time.Duration {
	v := p.Take(key)
	if v == "" {
		return without
	}
	d, err := time.ParseDuration(v)
	if err != nil {
		p.fail(fmt.Errorf("%s %q: give a duration such as 500ms", key, v))
		return without
	}
	return d
}

// Password takes password_file out. It returns a function for the password of u: the one in u, or what the file has at
// each login, because a password is renewed while locks are held. While the file cannot be read, the last one counts.
func (p *Params) Password(u *url.URL) func() string {
	password, given := u.User.Password()
	inURL := func() string { return password }
	path := p.Take("password_file")
	if path == "" {
		return inURL
	}
	if given {
		p.fail(errors.New("password_file: give it without a password, as in user@host"))
		return inURL
	}
	now, err := reread(func() (string, error) {
		b, err := os.ReadFile(path)
		text := strings.TrimRight(string(b), "\r\n")
		if err == nil && text == "" {
			err = errors.New("the file is empty")
		}
		return text, err
	})
	if err != nil {
		p.fail(fmt.Errorf("password_file: %w", err))
		return inURL
	}
	return now
}

// reread returns a function that calls read again each time, because files are renewed while locks are held. While read
// fails, its last result counts. An error of the first call is returned.
func reread[T any](read func() (T, error)) (func() T, error) {
	first, err := read()
	if err != nil {
		return nil, err
	}
	var last atomic.Pointer[T]
	last.Store(&first)
	return func() T {
		if now, err := read(); err == nil {
			last.Store(&now)
		}
		return *last.Load()
	}, nil
}

// TLS takes ca, cert, key and server_name out. It returns a function for the configuration of the next connection, for
// which it reads the files again, and nil where TLS is off. Then it is an error to give one of them: how describes how
// to switch on TLS.
func (p *Params) TLS(on bool, how string) func() *tls.Config {
	config, err := p.takeTLS(on, how)
	if err != nil {
		p.fail(err)
	}
	return config
}

func (p *Params) takeTLS(on bool, how string) (func() *tls.Config, error) {
	ca, cert, key, name := p.Take("ca"), p.Take("cert"), p.Take("key"), p.Take("server_name")
	if !on {
		if ca+cert+key+name != "" {
			return nil, fmt.Errorf("ca, cert, key and server_name are for TLS: %s", how)
		}
		return nil, nil
	}
	t := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: name}
	roots := func() *x509.CertPool { return nil } // the system's
	if ca != "" {
		var err error
		roots, err = reread(func() (*x509.CertPool, error) {
			pem, err := os.ReadFile(ca)
			pool := x509.NewCertPool()
			if err == nil && !pool.AppendCertsFromPEM(pem) {
				err = fmt.Errorf("%q holds no certificate in PEM form", ca)
			}
			return pool, err
		})
		if err != nil {
			return nil, fmt.Errorf("ca: %w", err)
		}
	}
	if (cert == "") != (key == "") {
		return nil, errors.New("give cert and key together")
	}
	if cert != "" {
		pair, err := reread(func() (tls.Certificate, error) { return tls.LoadX509KeyPair(cert, key) })
		if err != nil {
			return nil, fmt.Errorf("cert and key: %w", err)
		}
		t.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			now := pair()
			return &now, nil
		}
	}
	return func() *tls.Config {
		now := t.Clone()
		now.RootCAs = roots()
		return now
	}, nil
}

// Rest returns the parameters that have not been taken out, for a store whose client library
// has parameters of its own. It returns an error for a name that is nearly that of a parameter
// that was taken out.
func (p *Params) Rest() (url.Values, error) {
	if p.err != nil {
		return nil, p.err
	}
	for key := range p.values {
		for _, known := range p.known {
			if near(key, known) {
				return nil, fmt.Errorf("unknown parameter %q: the nearest is %s", key, known)
			}
		}
	}
	return p.values, nil
}

// near reports whether two words of four letters or more differ by one letter: added, removed
// or changed. Two adjacent letters that changed places count, too.
func near(a, b string) bool {
	if len(a) > len(b) {
		a, b = b, a
	}
	if len(b) < 4 || len(b)-len(a) > 1 || a == b {
		return false
	}
	i := 0
	for i < len(a) && a[i] == b[i] {
		i++
	}
	if len(a) < len(b) {
		return a[i:] == b[i+1:]
	}
	return a[i+1:] == b[i+1:] || i+1 < len(a) && a[i] == b[i+1] && a[i+1] == b[i] && a[i+2:] == b[i+2:]
}

// End returns the first error, also that of a parameter that is left or has no value.
func (p *Params) End() error {
	if p.err != nil {
		return p.err
	}
	if p.empty != "" {
		return fmt.Errorf("parameter %s is empty", p.empty)
	}
	for key := range p.values {
		slices.Sort(p.known)
		if strings.ContainsAny(key, "@:/") {
			return errors.New("unknown parameter: write ? in a password as %3F")
		}
		return fmt.Errorf("unknown parameter %q: there are %s", key, strings.Join(p.known, ", "))
	}
	return nil
}
