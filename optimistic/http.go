package optimistic

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"

	"github.com/holdfast-go/holdfast/driver"
)

// HTTP keeps values in an object store, one object each, by conditional requests: GET reads
// an object and its ETag, PUT writes it with If-Match, or with If-None-Match: * if it must
// not exist. S3 and the stores that are compatible with it do that, and so does WebDAV on
// several servers.
//
//	values := optimistic.HTTP{URL: "https://bucket.s3.eu-central-1.amazonaws.com/state", Client: signing}
//
// The server must compare and write in one atomic step, and return a strong ETag for a GET
// and a PUT. S3's ETag is a hash of the content: a value that was changed and changed back
// has its old version again. Updates of the value are still correct, because they depend
// only on the content. A guard needs more, and fence.Objects adds it.
type HTTP struct {
	// URL is the URL of the objects' parent. HTTP escapes a key and appends it after a slash.
	// Required, http or https.
	URL string
	// Client sends the requests. It signs them, if the server requires that, by its
	// Transport. It must not repeat a PUT that may have been done.
	// net/http does not. Default: http.DefaultClient.
	Client *http.Client
}

var _ Values = HTTP{}

// Get implements [Values].
func (h HTTP) Get(ctx context.Context, key string) ([]byte, string, error) {
	resp, err := h.send(ctx, http.MethodGet, key, nil, nil)
	if err != nil {
		return nil, "", err
	}
	defer resp.Body.Close()
	switch {
	case resp.StatusCode == http.StatusNotFound:
		return nil, "", nil
	case resp.StatusCode != http.StatusOK:
		return nil, "", h.refused(resp, driver.CodeUnavailable)
	}
	data, err := io.ReadAll(io.LimitReader(resp.Body, driver.MaxValue+1))
	if err != nil {
		return nil, "", driver.Errorf(driver.CodeUnavailable, "%s: %w", h.at(key), err)
	}
	if len(data) > driver.MaxValue {
		return nil, "", driver.Errorf(driver.CodeInvalid, "%s has more than %d bytes", h.at(key), driver.MaxValue)
	}
	version, err := etag(resp)
	return data, version, err
}

// Put implements [Values].
func (h HTTP) Put(ctx context.Context, key string, data []byte, version string) (string, error) {
	header := http.Header{"If-Match": {version}}
	if version == "" {
		header = http.Header{"If-None-Match": {"*"}}
	}
	resp, err := h.send(ctx, http.MethodPut, key, data, header)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	switch resp.StatusCode {
	case http.StatusOK, http.StatusCreated, http.StatusNoContent:
		next, err := etag(resp)
		if err != nil { // the value was written, but the next Put needs a Get
			return "", driver.Errorf(driver.CodeUnknown, "the object was written: %w", err)
		}
		return next, nil
	case http.StatusPreconditionFailed, http.StatusConflict, http.StatusNotFound:
		// 409: S3 had another write of the object at the same time. 404: the object of an
		// If-Match does not exist; or its parent, which a Get does not find either.
		if version == "" && resp.StatusCode == http.StatusNotFound {
			return "", h.refused(resp, driver.CodeRefused)
		}
		return "", driver.Conflict(key)
	}
	return "", h.refused(resp, driver.CodeUnknown)
}

func (h HTTP) send(ctx context.Context, method, key string, data []byte, header http.Header) (*http.Response, error) {
	if err := driver.CheckValue(key, data); err != nil {
		return nil, err
	}
	if u, err := url.Parse(h.URL); err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return nil, driver.Errorf(driver.CodeInvalid, "optimistic.HTTP: URL: want http://HOST/PATH or https://HOST/PATH")
	}
	if err := ctx.Err(); err != nil {
		return nil, driver.Errorf(driver.CodeUnavailable, "%w", err)
	}
	var body io.Reader
	if method == http.MethodPut {
		body = bytes.NewReader(data)
	}
	req, err := http.NewRequestWithContext(ctx, method, h.at(key), body)
	if err != nil {
		return nil, driver.Errorf(driver.CodeInvalid, "optimistic.HTTP: %w", err)
	}
	for name, values := range header {
		req.Header[name] = values
	}
	client := h.Client
	if client == nil {
		client = http.DefaultClient
	}
	resp, err := client.Do(req)
	if err == nil {
		return resp, nil
	}
	code := driver.CodeUnknown
	var dial *net.OpError
	if method == http.MethodGet || errors.As(err, &dial) && dial.Op == "dial" {
		code = driver.CodeUnavailable
	}
	return nil, &driver.Error{Code: code, Err: err}
}

// at returns the URL of an object.
func (h HTTP) at(key string) string {
	return strings.TrimSuffix(h.URL, "/") + "/" + url.PathEscape(key)
}

// refused returns the error of a response. If the response reports a failure of the server or
// of a proxy, the error has the code unclear.
func (h HTTP) refused(resp *http.Response, unclear driver.Code) error {
	text, _ := io.ReadAll(io.LimitReader(resp.Body, 200)) // for people
	code := driver.CodeRefused
	switch {
	case resp.StatusCode == http.StatusTooManyRequests:
		code = driver.CodeUnavailable
	case resp.StatusCode >= 500: // also 503: a proxy may send it after it has forwarded the request
		code = unclear
	}
	return &driver.Error{Code: code, Err: fmt.Errorf("%s %s: %s: %s", resp.Request.Method, resp.Request.URL.Redacted(), resp.Status, text)}
}

func etag(resp *http.Response) (string, error) {
	tag := resp.Header.Get("ETag")
	if tag == "" || strings.HasPrefix(tag, "W/") {
		return "", driver.Errorf(driver.CodeUnsupported, "%s: the server returned the ETag %q: versions need a strong one", resp.Request.URL.Redacted(), tag)
	}
	return tag, nil
}
