package server

import (
	"strings"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

func TestOwnerSurvivesEncoding(t *testing.T) {
	s := &Server{}
	for _, o := range []driver.Owner{
		{},
		{Host: "web-1", PID: 4711, Instance: "blue", Reason: "nightly"},
		{Host: "a b&c", PID: 1, Instance: "%41+", Reason: "line\nbreak \x00 ü"},
	} {
		text := s.EncodeOwner(o)
		if strings.ContainsAny(text, " \n\x00") || text == "" {
			t.Errorf("%+v is encoded as %q: not one word", o, text)
		}
		if again := s.EncodeOwner(o); again != text {
			t.Errorf("%+v is encoded as %q, then %q", o, text, again)
		}
		got, ok := ReadOwner("id", text, 1_000_000)
		want := o
		want.ID, want.Since = "id", time.UnixMicro(1_000_000)
		if got != want || !ok {
			t.Errorf("read %+v, want %+v", got, want)
		}
	}
	long := s.EncodeOwner(driver.Owner{Reason: strings.Repeat("ü", 2000)})
	if got, _ := ReadOwner("", long, 0); len(got.Reason) > 1024 || !strings.HasPrefix(got.Reason, "üü") || strings.ContainsRune(got.Reason, '\uFFFD') {
		t.Errorf("a long reason is cut to %d bytes", len(got.Reason))
	}
	for _, text := range []string{"", "1&&", "1&&&&", "x&&&", "1&%zz&&", "h=&i=&p=1&r="} {
		if got, ok := ReadOwner("", text, 0); ok {
			t.Errorf("%q is read as %+v", text, got)
		}
	}
}
