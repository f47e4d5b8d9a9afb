package server

import (
	"testing"

	"github.com/holdfast-go/holdfast/driver"
)

// TestReadChecksAnswers requires that read accepts the answers of the scripts, and no others.
func TestReadChecksAnswers(t *testing.T) {
	s := &Server{}
	for _, c := range []struct {
		script string
		values []string
		kind   byte
		rest   int
	}{
		{"acquire", []string{"G1700000000000000"}, 'G', 2},
		{"acquire", []string{"G 1700000000000000 1700000000000001 0"}, 'G', 2},
		{"acquire", []string{"G", "1700000000000000", "1700000000000001", "3"}, 'G', 2},
		{"acquire", []string{"B", "1700000000000000"}, 'B', 0},
		{"release", []string{"R"}, 'R', 0},
		{"release", []string{"N"}, 'N', 0},
		{"release", []string{"R", "1700000000000000", "1700000000000001", "0"}, 'R', 2},
		{"acquire", nil, 0, 0},
		{"acquire", []string{""}, 0, 0},
		{"acquire", []string{"OK", "1"}, 0, 0},
		{"acquire", []string{"G", "soon", "1", "0"}, 0, 0},
		{"acquire", []string{"Gsoon"}, 0, 0},
		{"acquire", []string{"1700000000000000"}, 0, 0},
		{"release", []string{"1700000000000000"}, 0, 0},
	} {
		rep, err := s.Read(&Script{Name: c.script}, nil, driver.Now(), Micros(), c.values, nil)
		if c.kind == 0 {
			if driver.CodeOf(err) != driver.CodeUnknown || err == nil {
				t.Errorf("%s %q: %+v, %v", c.script, c.values, rep, err)
			}
			continue
		}
		if err != nil || rep.Kind != c.kind || len(rep.Values) != c.rest {
			t.Errorf("%s %q: %c %q, %v", c.script, c.values, rep.Kind, rep.Values, err)
		}
	}
}
