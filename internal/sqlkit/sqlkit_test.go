package sqlkit

import (
	"bytes"
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

type noDeadlines struct{ net.Conn }

func (noDeadlines) SetReadDeadline(time.Time) error { return errors.New("deadlines are not supported") }

// fragile is a connection that ends when a deadline has passed, like a websocket. It then
// returns an error of its own.
type fragile struct{ net.Conn }

func (f fragile) Read(p []byte) (int, error) {
	n, err := f.Conn.Read(p)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		_ = f.Conn.Close()
		err = errors.New("websocket: too late")
	}
	return n, err
}

// TestWatchKeepsFragileConn: Watch and Read do not end a connection that a deadline would
// end.
func TestWatchKeepsFragileConn(t *testing.T) {
	defer goleak.VerifyNone(t)
	plain, other := pipe(t)
	defer other.Close()
	c := NewConn(fragile{plain.Conn})
	defer c.Close()
	buf := make([]byte, 16)
	for _, s := range []string{"one", "two", "three"} {
		c.Watch()
		if _, err := io.WriteString(other, s); err != nil {
			t.Fatal(err)
		}
		if n, err := io.ReadAtLeast(c, buf, len(s)); err != nil || string(buf[:n]) != s {
			t.Fatalf("read %q, %v; want %q", buf[:n], err, s)
		}
	}
	select {
	case <-c.Gone():
		t.Error("the connection has ended")
	default:
	}
}

// TestWatchDuringReadNoticesTheEnd: Watch is called while a caller reads, and that Read returns the last data.
// No other Read follows, and the end of the connection is reported.
func TestWatchDuringReadNoticesTheEnd(t *testing.T) {
	defer goleak.VerifyNone(t)
	c, other := pipe(t)
	defer c.Close()
	done := make(chan error)
	go func() {
		_, err := c.Read(make([]byte, 16))
		done <- err
	}()
	for reading := false; !reading; {
		c.mu.Lock()
		reading = c.reading
		c.mu.Unlock()
	}
	c.Watch()
	if _, err := io.WriteString(other, "last data"); err != nil {
		t.Fatal(err)
	}
	must.Succeed(t, <-done)
	other.Close()
	select {
	case <-c.Gone():
	case <-time.After(20 * time.Second):
		t.Error("the end of the connection was not reported")
	}
}

// TestConnReportsItsEnd: a watched connection reports its end, and loses no data before it.
// Deadlines limit the reader and not the watching goroutine.
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
	_ = c.SetReadDeadline(time.Now().Add(-time.Second))
	if _, err := c.Read(buf); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("past the deadline: %v", err)
	}
	_ = c.SetReadDeadline(time.Time{})
	c.Watch()
	c.Watch()
	write("two")
	read("two")
	_ = c.SetReadDeadline(time.Now().Add(10 * time.Millisecond))
	if _, err := c.Read(buf); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("past the deadline, watched: %v", err)
	}
	_ = c.SetReadDeadline(time.Time{})
	for range 100 { // Read takes over from the goroutine at any moment, and loses nothing
		c.Watch()
		write("three")
		read("three")
	}
	c.Watch()
	_ = c.SetReadDeadline(time.Now().Add(-time.Second)) // the reader's deadline
	select {
	case <-c.Gone():
		t.Fatal("Gone reports the end of an open connection")
	default:
	}
	write("last data")
	other.Close()
	<-c.Gone() // although no caller reads
	_ = c.SetReadDeadline(time.Time{})
	read("last data")
	if _, err := c.Read(buf); !errors.Is(err, io.EOF) {
		t.Errorf("after the end: %v", err)
	}

	// Some connections have no deadlines, such as those through SSH.
	plain, otherPlain := pipe(t)
	defer otherPlain.Close()
	defer plain.Close()
	plain.Conn = noDeadlines{plain.Conn}
	for _, s := range []string{"one", "two"} {
		plain.Watch()
		if _, err := io.WriteString(otherPlain, s); err != nil {
			t.Fatal(err)
		}
		if n, err := io.ReadAtLeast(plain, buf, len(s)); err != nil || string(buf[:n]) != s {
			t.Fatalf("without deadlines: read %q, %v; want %q", buf[:n], err, s)
		}
	}

	// A waiting reader sees the end without Watch, too. A caller may call Watch meanwhile.
	waiting, otherWaiting := pipe(t)
	defer waiting.Close()
	done := make(chan error, 1)
	go func() { _, err := waiting.Read(make([]byte, 1)); done <- err }()
	waiting.Watch()
	otherWaiting.Close()
	if err := <-done; !errors.Is(err, io.EOF) {
		t.Error(err)
	}
	<-waiting.Gone()

	// Close ends the connection, too.
	closing, otherClosing := pipe(t)
	defer otherClosing.Close()
	closing.Watch()
	closing.Close()
	<-closing.Gone()
}
