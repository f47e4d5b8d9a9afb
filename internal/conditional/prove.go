package conditional

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

// writers is the number of writers that Prove lets write one object at the same time.
const writers = 16

// Prove proves with an object at url, which does not exist and which it deletes at the end, that the server compares
// a version and writes in one step, and that a read sees the write before it. If the server does not, the error has
// CodeUnsupported and describes what happened. If the clocks of two servers at the address differ by more than
// skew, it has CodeRefused.
func Prove(ctx context.Context, c *http.Client, url string, skew time.Duration) error {
	defer remove(ctx, c, url)
	_, err := Put(ctx, c, url+"-missing", []byte("probe"), http.Header{"If-Match": {`"holdfast-no-version"`}})
	if err == nil {
		remove(ctx, c, url+"-missing")
		return driver.Errorf(driver.CodeUnsupported, "the server ignores If-Match: it creates an object that does not exist")
	} else if driver.CodeOf(err) != driver.CodeConflict {
		return err
	}
	r := race{c: c, url: url, skew: skew}
	if err := r.run(ctx, http.Header{"If-None-Match": {"*"}}, "create an object"); err != nil {
		return err
	}
	if err := r.run(ctx, http.Header{"If-Match": {r.tag}}, "replace one version"); err != nil {
		return err
	}
	if err := Compare(ctx, c, url, []byte("probe"), http.Header{}); err != nil {
		return err
	}
	return r.read(ctx)
}

// race is a write of several writers, and the write that has succeeded.
type race struct {
	c    *http.Client
	url  string
	skew time.Duration

	data []byte
	tag  string
}

// run lets the writers write under a condition that only one of them can meet. Each first reads, so that all have a
// connection.
func (r *race) run(ctx context.Context, condition http.Header, what string) error {
	var mu sync.Mutex
	var ready, done sync.WaitGroup
	var dates []time.Time
	var failure error
	won, lost, start, begin := 0, 0, time.Now(), make(chan struct{})
	ready.Add(writers)
	for i := range writers {
		done.Go(func() {
			o, err := Get(ctx, r.c, r.url, 1024)
			date, noDate := http.ParseTime(o.Header.Get("Date"))
			mu.Lock()
			if err == nil && noDate == nil {
				dates = append(dates, date)
			}
			mu.Unlock()
			ready.Done()
			<-begin
			data := fmt.Appendf(nil, "probe: writer %d shall %s", i, what)
			tag, err := Put(ctx, r.c, r.url, data, condition)
			mu.Lock()
			defer mu.Unlock()
			switch {
			case err == nil:
				won++
				r.data, r.tag = data, tag
			case driver.CodeOf(err) == driver.CodeConflict:
				lost++
			default:
				failure = err
			}
		})
	}
	ready.Wait()
	read := time.Since(start)
	close(begin)
	done.Wait()
	switch {
	case won > 1:
		return driver.Errorf(driver.CodeUnsupported, "%d of %d writers could %s at the same time, and one may: the "+
			"server does not compare and write in one step", won, writers, what)
	case lost < writers/2: // the outcome of the others is not known, so they prove nothing
		return failure
	case won == 0: // S3 may refuse all writers at the same time
		return driver.Errorf(driver.CodeUnavailable, "none of %d writers could %s", writers, what)
	}
	for _, one := range dates { // a date has seconds, and may be a second old
		if behind := dates[0].Sub(one).Abs() - read - 2*time.Second; behind > r.skew {
			return driver.Errorf(driver.CodeRefused, "the clocks of two servers at this address differ by %s, and skew is %s",
				behind, r.skew)
		}
	}
	return r.read(ctx)
}

// read requires that the object has the last write that has succeeded.
func (r *race) read(ctx context.Context) error {
	o, err := Get(ctx, r.c, r.url, 1024)
	if err == nil && (o.ETag != r.tag || !bytes.Equal(o.Data, r.data)) {
		return driver.Errorf(driver.CodeUnsupported, "a read has the ETag %s and %q after a write with the ETag %s and %q",
			o.ETag, o.Data, r.tag, r.data)
	}
	return err
}

// remove deletes an object, if the client has the right.
func remove(ctx context.Context, c *http.Client, url string) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	if resp, err := Send(ctx, c, http.MethodDelete, url, nil, nil); err == nil {
		_, _ = io.Copy(io.Discard, io.LimitReader(resp.Body, 4096))
		_ = resp.Body.Close()
	}
}
