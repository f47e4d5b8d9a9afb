package zk

import (
	"bufio"
	"bytes"
	"testing"
)

// FuzzAnswers: no answer makes the client panic or allocate more memory than the answer
// contains.
func FuzzAnswers(f *testing.F) {
	var e encoder
	e.int32(opCreatePlain)
	e.bool(false)
	e.int32(-1)
	e.string("/a/b-0000000001")
	e.int32(-1)
	e.bool(true)
	e.int32(-1)
	f.Add(e.b)
	f.Add([]byte{0x7f, 0xff, 0xff, 0xff})
	f.Add([]byte{0xff, 0xff, 0xff, 0xff, 0, 0, 0, 1, 'a'})
	f.Fuzz(func(t *testing.T, b []byte) {
		calls := []*Call{
			CreateEphemeral("/a", nil, Everyone), CreateContainer("/a", Everyone), Get("/a", true), Set("/a", nil, 1), Children("/a"),
			Sync("/a"), Delete("/a", -1), Multi(Check("/a", 1), CreateSequential("/a", nil, Everyone)),
		}
		for _, c := range calls {
			c.decode(0, &decoder{b: b})
			if len(c.Names) > len(b) || len(c.Data) > len(b) || len(c.Path) > len(b) {
				t.Errorf("%+v of %d bytes", c, len(b))
			}
		}
		_, _ = readFrame(bufio.NewReader(bytes.NewReader(b)), nil)
	})
}

func TestFailedMultiReturnsError(t *testing.T) {
	var e encoder
	for _, code := range []Error{0, ErrNoNode, ErrRuntimeInconsistency} {
		e.int32(opError)
		e.bool(false)
		e.int32(int32(code))
		e.int32(int32(code))
	}
	e.int32(-1)
	e.bool(true)
	e.int32(-1)
	m := Multi(Check("/a", 1), Delete("/b", 1), Delete("/c", 1))
	m.decode(0, &decoder{b: e.b})
	if m.Err != ErrNoNode || m.Failed != 1 || m.Results[0].Err != nil || m.Results[2].Err != ErrRuntimeInconsistency {
		t.Errorf("%+v", m)
	}
}
