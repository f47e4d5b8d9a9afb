package sqlkit

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"net"
	"os"
	"testing"
	"time"

	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"github.com/holdfast-go/holdfast/driver"
)

// TestLabelSurvivesStatement: FindLabel reads a label back from a statement. With any
// content the label is short enough and cannot end its comment.
func TestLabelSurvivesStatement(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l := Label{
			Key:   append([]byte(rapid.StringN(0, 20, 128).Draw(t, "namespace")+"\x00"), rapid.StringN(1, 128, 512).Draw(t, "name")...),
			Owner: driver.Owner{ID: rapid.StringMatching(`[a-z0-9-]{1,40}`).Draw(t, "id"), PID: rapid.IntRange(1, 1<<22).Draw(t, "pid"), Host: rapid.String().Draw(t, "host"), Reason: rapid.String().Draw(t, "reason")},
			Limit: rapid.IntRange(1, driver.MaxLimit).Draw(t, "limit"), TTL: time.Duration(rapid.Int64Range(1, 1e6).Draw(t, "ms")) * time.Millisecond,
			Tokens: rapid.SampledFrom([]int{0, 2, 65, mostTokens}).Draw(t, "tokens"),
		}
		const most = 1400
		s := l.Encode(most)
		if len(s) > most {
			t.Fatalf("%d bytes", len(s))
		}
		for _, c := range []byte(s) {
			if c == '*' || c == '/' || c == '\'' || c < ' ' || c > '~' {
				t.Fatalf("%q in a comment", c)
			}
		}
		got, ok := FindLabel("SELECT /*" + s + "*/ 1.0.0")
		if !ok || !bytes.Equal(got.Key, l.Key) || got.Owner.ID != l.Owner.ID || got.Owner.PID != l.Owner.PID || got.Limit != l.Limit || got.TTL != l.TTL || got.Tokens != l.Tokens {
			t.Fatalf("%+v came back as %+v, %t", l, got, ok)
		}
	})
	for _, s := range []string{"", "SELECT 1", "SELECT /*hf1.*/ 1", "/*hf1.....*/", "/*hf1.!.a.1.1.1.a.a.a.*/"} {
		if l, ok := FindLabel(s); ok {
			t.Errorf("%q has the label %+v", s, l)
		}
	}
}

// TestEncodeIsASCII: Encode returns only ASCII, and JSON decodes it to the same value.
func TestEncodeIsASCII(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := rapid.String().Draw(t, "text")
		e := Encode(s)
		for _, c := range []byte(e) {
			if c >= 0x80 {
				t.Fatalf("%q", e)
			}
		}
		var back string
		if err := json.Unmarshal([]byte(e), &back); err != nil || back != s {
			t.Fatalf("%q came back as %q, %v", s, back, err)
		}
	})
}

func TestStatements(t *testing.T) {
	got := Statements("-- one\nCREATE x ( -- two; three\n a INT\n);\n\nINSERT y;\n-- end;\n")
	if len(got) != 2 || got[1] != "INSERT y" {
		t.Errorf("%q", got)
	}
}

func pipe(t *testing.T) (*Conn, net.Conn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	c, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	s, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
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
		t.Error("it has ended")
	default:
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
	for range 100 { // a reader takes over at any moment, and loses nothing
		c.Watch()
		write("three")
		read("three")
	}
	c.Watch()
	_ = c.SetReadDeadline(time.Now().Add(-time.Second)) // the reader's deadline
	select {
	case <-c.Gone():
		t.Fatal("gone while it is there")
	default:
	}
	write("last words")
	other.Close()
	<-c.Gone() // although no reader reads
	_ = c.SetReadDeadline(time.Time{})
	read("last words")
	if _, err := c.Read(buf); !errors.Is(err, io.EOF) {
		t.Errorf("after the end: %v", err)
	}

	// The connection has no deadlines, such as one through SSH.
	c4, other4 := pipe(t)
	defer other4.Close()
	defer c4.Close()
	c4.Conn = noDeadlines{c4.Conn}
	for _, s := range []string{"one", "two"} {
		c4.Watch()
		if _, err := io.WriteString(other4, s); err != nil {
			t.Fatal(err)
		}
		if n, err := io.ReadAtLeast(c4, buf, len(s)); err != nil || string(buf[:n]) != s {
			t.Fatalf("without deadlines: read %q, %v; want %q", buf[:n], err, s)
		}
	}

	// A waiting reader sees the end without Watch, too. A caller may call Watch meanwhile.
	c2, other2 := pipe(t)
	defer c2.Close()
	done := make(chan error, 1)
	go func() { _, err := c2.Read(make([]byte, 1)); done <- err }()
	c2.Watch()
	other2.Close()
	if err := <-done; !errors.Is(err, io.EOF) {
		t.Error(err)
	}
	<-c2.Gone()

	// Close ends the connection, too.
	c3, other3 := pipe(t)
	defer other3.Close()
	c3.Watch()
	c3.Close()
	<-c3.Gone()
}
