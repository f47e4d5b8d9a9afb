package s3store

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"time"
)

// Keys are the credentials of a request. Session is the token of temporary ones, or "".
type Keys struct{ ID, Secret, Session string }

// signer is an http.RoundTripper that signs requests by AWS Signature Version 4.
type signer struct {
	*http.Transport
	region string
	keys   func(context.Context) (Keys, error)
	ahead  atomic.Int64 // of the server's clock, as a time.Duration
}

// tolerance is less than the difference of clocks that a server accepts, which is 15 minutes.
const tolerance = 5 * time.Minute

// RoundTrip implements [http.RoundTripper]. If the server refuses a request and its clock differs, the signer repeats
// the request with the time of the server. So the client may have a wrong clock.
func (s *signer) RoundTrip(req *http.Request) (*http.Response, error) {
	resp, err := s.send(req)
	if err != nil || resp.StatusCode != http.StatusForbidden {
		return resp, err
	}
	date, err := http.ParseTime(resp.Header.Get("Date"))
	if err != nil || (time.Until(date)-time.Duration(s.ahead.Load())).Abs() < tolerance {
		return resp, nil
	}
	s.ahead.Store(int64(time.Until(date)))
	_ = resp.Body.Close()
	return s.send(req)
}

func (s *signer) send(req *http.Request) (*http.Response, error) {
	k, err := s.keys(req.Context())
	if err != nil {
		return nil, err
	}
	req = req.Clone(req.Context())
	var body []byte
	if req.GetBody != nil {
		r, err := req.GetBody()
		if err == nil {
			body, err = io.ReadAll(r)
		}
		if err != nil {
			return nil, err
		}
		req.Body, _ = req.GetBody()
	}
	sum := sha256.Sum256(body)
	req.Header.Set("X-Amz-Content-Sha256", hex.EncodeToString(sum[:]))
	if k.Session != "" {
		req.Header.Set("X-Amz-Security-Token", k.Session)
	}
	s.sign(req, k, time.Now().Add(time.Duration(s.ahead.Load())).UTC())
	return s.Transport.RoundTrip(req)
}

// sign signs every header of the request, and so its conditions too. The path needs no escapes: see the function leaf.
func (s *signer) sign(req *http.Request, k Keys, now time.Time) {
	at := now.Format("20060102T150405Z")
	req.Header.Set("X-Amz-Date", at)
	lines := []string{"host:" + req.URL.Host}
	for name, values := range req.Header {
		lines = append(lines, strings.ToLower(name)+":"+strings.Join(values, ","))
	}
	slices.Sort(lines)
	var names []string
	for _, line := range lines {
		name, _, _ := strings.Cut(line, ":")
		names = append(names, name)
	}
	signed := strings.Join(names, ";")
	canonical := sha256.Sum256([]byte(strings.Join([]string{req.Method, req.URL.EscapedPath(), req.URL.RawQuery,
		strings.Join(lines, "\n") + "\n", signed, req.Header.Get("X-Amz-Content-Sha256")}, "\n")))
	scope := at[:8] + "/" + s.region + "/s3/aws4_request"
	key := []byte("AWS4" + k.Secret)
	text := "AWS4-HMAC-SHA256\n" + at + "\n" + scope + "\n" + hex.EncodeToString(canonical[:])
	for _, part := range append(strings.Split(scope, "/"), text) {
		mac := hmac.New(sha256.New, key)
		mac.Write([]byte(part))
		key = mac.Sum(nil)
	}
	req.Header.Set("Authorization", fmt.Sprintf("AWS4-HMAC-SHA256 Credential=%s/%s,SignedHeaders=%s,Signature=%x",
		k.ID, scope, signed, key))
}
