// Package conditional reads and writes objects by conditional requests of HTTP, as S3 has them.
package conditional

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptrace"
	"strings"
	"sync/atomic"

	"github.com/holdfast-go/holdfast/driver"
)

// Object is the answer to a GET. ETag is "" if there is no object.
type Object struct {
	Data   []byte
	ETag   string
	Header http.Header
}

// Get reads an object of at most limit bytes. Of a longer one, it returns the first limit+1.
func Get(ctx context.Context, c *http.Client, url string, limit int) (Object, error) {
	resp, err := Send(ctx, c, http.MethodGet, url, nil, nil)
	if err != nil {
		return Object{}, err
	}
	defer resp.Body.Close()
	o := Object{Header: resp.Header}
	switch {
	case resp.StatusCode == http.StatusNotFound:
		_, _ = io.Copy(io.Discard, io.LimitReader(resp.Body, 4096)) // so that the connection can be used again
		return o, nil
	case resp.StatusCode != http.StatusOK:
		return Object{}, Refused(resp, driver.CodeUnavailable)
	}
	if o.Data, err = io.ReadAll(io.LimitReader(resp.Body, int64(limit)+1)); err != nil {
		return Object{}, driver.Errorf(driver.CodeUnavailable, "%s: %w", url, err)
	}
	o.ETag, err = etag(resp)
	return o, err
}

// Put writes an object under the conditions in header, and returns its ETag. If a condition does not hold, the
// error has CodeConflict.
func Put(ctx context.Context, c *http.Client, url string, data []byte, header http.Header) (string, error) {
	resp, err := Send(ctx, c, http.MethodPut, url, data, header)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	switch resp.StatusCode {
	case http.StatusOK, http.StatusCreated, http.StatusNoContent:
		next, err := etag(resp)
		if err != nil { // the object was written, but the next Put needs a Get
			return "", driver.Errorf(driver.CodeUnknown, "the object was written: %w", err)
		}
		return next, nil
	case http.StatusPreconditionFailed, http.StatusConflict, http.StatusNotFound:
		// 409: S3 had another write of the object at the same time. 404: the object of an
		// If-Match does not exist; or its parent, which a Get does not find either.
		if header.Get("If-Match") == "" && resp.StatusCode == http.StatusNotFound {
			return "", Refused(resp, driver.CodeRefused)
		}
		_, _ = io.Copy(io.Discard, io.LimitReader(resp.Body, 4096))
		return "", driver.Conflict(url)
	}
	return "", Refused(resp, driver.CodeUnknown)
}

// Compare returns an error, unless the server refuses to write an object that exists under conditions that do not
// hold. The error has CodeUnsupported if the server writes it.
func Compare(ctx context.Context, c *http.Client, url string, data []byte, header http.Header) error {
	for name, value := range map[string]string{"If-Match": `"holdfast-no-version"`, "If-None-Match": "*"} {
		header := header.Clone()
		header.Set(name, value)
		_, err := Put(ctx, c, url, data, header)
		switch code := driver.CodeOf(err); {
		case err == nil:
			return driver.Errorf(driver.CodeUnsupported, "%s: the server ignores %s, so a write can overwrite another one",
				url, name)
		case code != driver.CodeConflict:
			return err
		}
	}
	return nil
}

// Send sends a request, and follows no redirect. After a PUT without an answer, the code of the error is CodeUnknown,
// unless there was no connection to send it.
func Send(ctx context.Context, c *http.Client, method, url string, data []byte, header http.Header) (
	*http.Response, error,
) {
	var connected atomic.Bool
	trace := &httptrace.ClientTrace{GotConn: func(httptrace.GotConnInfo) { connected.Store(true) }}
	var body io.Reader
	if method == http.MethodPut {
		body = bytes.NewReader(data)
	}
	req, err := http.NewRequestWithContext(httptrace.WithClientTrace(ctx, trace), method, url, body)
	if err != nil {
		return nil, &driver.Error{Code: driver.CodeInvalid, Err: err}
	}
	for name, values := range header {
		req.Header[name] = values
	}
	client := *c
	client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	resp, err := client.Do(req)
	switch {
	case err == nil:
		return resp, nil
	case driver.CodeOf(err) != driver.CodeUnknown:
		return nil, err
	case method != http.MethodPut, !connected.Load():
		return nil, &driver.Error{Code: driver.CodeUnavailable, Err: err}
	}
	return nil, &driver.Error{Code: driver.CodeUnknown, Err: err}
}

// Refused returns the error of a response. If the response does not show whether the request was
// done, the error has the code unclear.
func Refused(resp *http.Response, unclear driver.Code) error {
	text, _ := io.ReadAll(io.LimitReader(resp.Body, 200)) // for people
	code := driver.CodeRefused
	switch {
	case resp.StatusCode == http.StatusTooManyRequests:
		code = driver.CodeUnavailable
	case resp.StatusCode == http.StatusNotImplemented: // S3 and others, for a condition that they do not know
	case resp.StatusCode >= 500: // also 503: a proxy may send it after it has forwarded the request
		code = unclear
	case resp.StatusCode < 400 && resp.Request.Method == http.MethodPut: // 303 may follow a write that was done
		code = unclear
	}
	if to, err := resp.Location(); err == nil {
		text = fmt.Appendf(nil, "redirects are not followed, here to %s://%s", to.Scheme, to.Host)
	}
	return driver.Errorf(code, "%s %s: %s: %s", resp.Request.Method, resp.Request.URL.Redacted(), resp.Status, text)
}

func etag(resp *http.Response) (string, error) {
	tag := resp.Header.Get("ETag")
	if tag == "" || strings.HasPrefix(tag, "W/") {
		return "", driver.Errorf(driver.CodeUnsupported, "%s: the server returned the ETag %q: versions need a strong one",
			resp.Request.URL.Redacted(), tag)
	}
	return tag, nil
}
