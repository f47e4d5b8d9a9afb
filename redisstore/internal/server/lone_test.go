package server

import (
	"bufio"
	"context"
	"errors"
	"net"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/holdfast-go/holdfast/internal/must"
)

// TestLoneRequestEndsWithItsContext sends a request to a server that does not answer it. The request
// ends with its context, and its connection is closed. The next request uses another one.
func TestLoneRequestEndsWithItsContext(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must.Succeed(t, err)
	defer l.Close()
	requests, ended := make(chan struct{}), make(chan struct{})
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			r := bufio.NewReader(conn)
			line := func() error { _, err := r.ReadString('\n'); return err }
			for range 5 { // HELLO 2: an array of two words
				_ = line()
			}
			_, _ = conn.Write([]byte("-ERR unknown command\r\n"))
			if line() == nil {
				requests <- struct{}{}
			}
			for line() == nil { // until the client closes the connection
			}
			_ = conn.Close()
			ended <- struct{}{}
		}
	}()
	one := newLone(redis.Options{
		Addr: l.Addr().String(), Dialer: dialer(nil), Protocol: 2, DisableIdentity: true, MaxRetries: -1, ReadTimeout: time.Hour,
	})
	defer one.client.Close()
	one.requests.Store(loneAfter)
	for _, want := range []error{context.Canceled, context.DeadlineExceeded} {
		ctx, cancel := context.WithCancel(t.Context()) // without a deadline, like that of a waiter
		if want == context.DeadlineExceeded {
			ctx, cancel = context.WithTimeout(t.Context(), time.Second)
		}
		defer cancel()
		result := errors.New("the request was not sent")
		returned := make(chan struct{})
		go func() {
			defer close(returned)
			if done, err := one.do(ctx, command(ctx, "get", "x"), true); done {
				result = err
			}
		}()
		late := time.After(20 * time.Second)
		select {
		case <-requests:
		case <-late:
			t.Fatal("the request does not arrive")
		}
		if want == context.Canceled {
			cancel()
		}
		for _, end := range []<-chan struct{}{returned, ended} {
			select {
			case <-end:
			case <-late:
				t.Fatalf("%v does not end the request or its connection", want)
			}
		}
		if !errors.Is(result, want) {
			t.Errorf("%v, want %v", result, want)
		}
	}
}
