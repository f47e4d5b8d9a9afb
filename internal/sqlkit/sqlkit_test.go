package sqlkit

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"os"
	"testing"
	"time"

	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/must"
)

// TestLabelSurvivesStatement: FindLabel reads a label back from a statement. With any
// content the label is short enough and cannot end its comment.
func TestLabelSurvivesStatement(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l := Label{
			Key:   append([]byte(rapid.StringN(0, 20, 128).Draw(t, "namespace")+"\x00"), rapid.StringN(1, 128, 512).Draw(t, "name")...),
			Owner: driver.Owner{ID: rapid.StringMatching(`[a-z0-9-]{1,40}`).Draw(t, "id"), PID: rapid.IntRange(1, 1<<22).Draw(t, "pid"), Host: rapid.String().Draw(t, "host"), Reason: rapid.String().Draw(t, "reason")},
			Limit: rapid.IntRange(1, driver.MaxLimit).Draw(t, "limit"), TTL: time.Duration(rapid.Int64Range(1, 1e6).Draw(t, "ms")) * time.Millisecond,
			Tokens: rapid.SampledFrom([]int{0, 2, 65, maxTokens}).Draw(t, "tokens"),
			Waited: time.Duration(rapid.Int64Range(0, 1e6).Draw(t, "waited")) * time.Millisecond,
		}
		const most = 1400
		s := l.Encode(most)
		if len(s) > most {
			t.Fatalf("the label has %d bytes, want at most %d", len(s), most)
		}
		for _, c := range []byte(s) {
			if c == '*' || c == '/' || c == '\'' || c < ' ' || c > '~' {
				t.Fatalf("the label contains %q, which could end its comment", c)
			}
		}
		got, ok := FindLabel("SELECT /*" + s + "*/ 1.0.0")
		if !ok || !bytes.Equal(got.Key, l.Key) || got.Owner.ID != l.Owner.ID || got.Owner.PID != l.Owner.PID || got.Limit != l.Limit || got.TTL != l.TTL || got.Tokens != l.Tokens || got.Waited != l.Waited {
			t.Fatalf("%+v is read back as %+v, %t", l, got, ok)
		}
	})
	for _, s := range []string{"", "SELECT 1", "SELECT /*hf1.*/ 1", "/*hf1.....*/", "/*hf1.!.a.1.1.1.a.a.a.*/"} {
		if l, ok := FindLabel(s); ok {
			t.Errorf("%q has the label %+v", s, l)
		}
	}
}

func TestStatementsSkipsComments(t *testing.T) {
	got := Statements("-- one\nCREATE x ( -- two; three\n a INT\n);\n\nINSERT y;\n-- end;\n")
	if len(got) != 2 || got[1] != "INSERT y" {
		t.Errorf("%q", got)
	}
}

// pipe returns both ends of a connection.
func pipe(t *testing.T) (*Conn, net.Conn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must.Succeed(t, err)
	defer l.Close()
	c, err := net.Dial("tcp", l.Addr().String())
	must.Succeed(t, err)
	s, err := l.Accept()
	must.Succeed(t, err)
	return NewConn(c), s
}

// TestConnReportsItsEnd: a connection reports its end, and loses no data before it.
func TestConnReportsItsEnd(t *testing.T) {
	defer goleak.VerifyNone(t)
	c, other := pipe(t)
	defer c.Close()
	buf := make([]byte, 16)
	read := func(want string) {
		t.Helper()
		if n, err := io.ReadAtLeast(c, buf, len(want)); err != nil || string(buf[:n]) != want {
			t.Fatalf("read %q, %v; want %q", buf[:n], err, want)
		}
	}
	write := func(s string) {
		t.Helper()
		if _, err := io.WriteString(other, s); err != nil {
			t.Fatal(err)
		}
	}
	write("one")
	read("one")
	for _, in := range []time.Duration{time.Minute, time.Hour} { // no deadline that is moved ends the connection
		_ = c.SetReadDeadline(time.Now().Add(in))
		c.expired()
		_ = c.SetReadDeadline(time.Time{})
		c.expired()
	}
	for range 100 {
		write("three")
		read("three")
	}
	select {
	case <-c.Gone():
		t.Fatal("Gone reports the end of an open connection")
	default:
	}
	write("last data")
	other.Close()
	<-c.Gone() // although no caller reads
	read("last data")
	if _, err := c.Read(buf); !errors.Is(err, io.EOF) {
		t.Errorf("after the end: %v", err)
	}

	// A waiting reader sees the end, too.
	waiting, otherWaiting := pipe(t)
	defer waiting.Close()
	done := make(chan error, 1)
	go func() { _, err := waiting.Read(make([]byte, 1)); done <- err }()
	otherWaiting.Close()
	if err := <-done; !errors.Is(err, io.EOF) {
		t.Error(err)
	}
	<-waiting.Gone()

	// A deadline ends the connection, and Close does.
	for name, first := range map[string]time.Duration{"earlier": time.Millisecond, "later": time.Hour} {
		late, otherLate := pipe(t)
		_ = late.SetReadDeadline(time.Now().Add(first))
		_ = late.SetReadDeadline(time.Time{})
		at := time.Now().Add(50 * time.Millisecond)
		_ = late.SetReadDeadline(at)
		if _, err := late.Read(buf); !errors.Is(err, os.ErrDeadlineExceeded) || time.Now().Before(at) {
			t.Errorf("a deadline after an %s one: %v", name, err)
		}
		<-late.Gone()
		otherLate.Close()
	}
	closing, otherClosing := pipe(t)
	defer otherClosing.Close()
	closing.Close()
	<-closing.Gone()
}

// dated is the context of a request, as the core makes it.
type dated struct {
	context.Context // the caller's
	at              time.Time
}

func (d dated) Caller() context.Context     { return d.Context }
func (d dated) Deadline() (time.Time, bool) { return d.at, true }
func (d dated) Err() error {
	if !time.Now().Before(d.at) {
		return context.DeadlineExceeded
	}
	return d.Context.Err()
}

// TestStatementEndsWithContext: the deadline of a statement ends its connection, and so does the
// end of the caller's context.
func TestStatementEndsWithContext(t *testing.T) {
	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	later := time.Now().Add(time.Hour)
	for name, ctx := range map[string]context.Context{
		"deadline":                 dated{context.Background(), time.Now()},
		"caller of a request":      dated{cancelled, later},
		"context without deadline": cancelled,
	} {
		below, other := pipe(t)
		c := NewConnection(below, func() {})
		_, err := c.Begin(ctx)
		must.Succeed(t, err)
		<-below.Gone()
		if c.Finish(ctx, &err); !partly(err) || !errors.Is(err, ctx.Err()) {
			t.Errorf("%s: %v, want an error of a statement that the server may have executed", name, err)
		}
		other.Close()
	}
}
