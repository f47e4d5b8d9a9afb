//go:build linux || darwin

package check

import (
	"bytes"
	"flag"
	"image/png"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/holdfast-go/holdfast/internal/must"
)

var updateImage = flag.Bool("update", false, "write docs/images/check-timeline.png anew")

// plantedHistory returns a history with waiters, faults and losses. It is correct except that one
// lock is granted twice.
func plantedHistory(events int) *story {
	s := simulate(5, events/2)
	s.add(Event{K: kindPause, W: "w1", For: 300 * ms})
	p := s.request("w1", "name-0", 1).granted()
	s.t += 280 * ms
	s.add(Event{K: kindResume, W: "w1"})
	p.event(kindLost, Event{Cause: "expired"}).unlock()
	a := s.request("w2", "name-1", 1).granted().work()
	b := s.request("w3", "name-1", 1).granted()
	c := s.request("w4", "name-1", 1).placed()
	s.t += 20 * ms
	a.unlock()
	b.unlock()
	c.granted().unlock()
	more := simulate(6, events/2)
	for _, e := range more.events[1:] {
		e.T += s.t
		e.Name = strings.Replace(e.Name, "name", "other", 1)
		e.Res = strings.Replace(e.Res, "name", "other", 1)
		if e.ID != "" {
			e.ID = "m" + e.ID
		}
		e.Op += 1_000_000
		s.events = append(s.events, e)
	}
	return s
}

func writePage(t *testing.T, s *story) string {
	t.Helper()
	r := s.judge(t)
	path := filepath.Join(t.TempDir(), "report.html")
	var b bytes.Buffer
	c, err := collect(s.events)
	must.Succeed(t, err)
	must.Succeed(t, renderPage(&b, c, r))
	must.Succeed(t, os.WriteFile(path, b.Bytes(), 0o600))
	return path
}

// TestPageIsSelfContained requires that the page loads nothing, and that no data can end
// the element that contains them.
func TestPageIsSelfContained(t *testing.T) {
	s := plantedHistory(500)
	ending := "</script><img src=x onerror=alert(1)>"
	s.request("w1", ending, 1).granted().unlock()
	b, err := os.ReadFile(writePage(t, s))
	must.Succeed(t, err)
	for _, bad := range []string{"http://", "https://", "src=", "@import", "url("} {
		if text := strings.ReplaceAll(string(b), "src=x", ""); strings.Contains(text, bad) {
			t.Errorf("the page contains %q", bad)
		}
	}
	if bytes.Contains(b, []byte(ending)) {
		t.Error("a name ended the element that contains the data")
	}
}

// drawn is what the page shows: the result of the script readDrawn.
type drawn struct {
	Colors       int
	Red          int
	Range, Whole [2]float64
	Text         string
}

// readDrawn is a script that waits until the next frame is drawn. It counts the colours on the
// canvas and the red pixels of a violation's frame.
const readDrawn = `new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => {
	const c = document.getElementById("timeline"), d = c.getContext("2d").getImageData(0, 0, c.width, c.height).data;
	const colors = new Set(); let red = 0;
	for (let i = 0; i < d.length; i += 4) {
		colors.add(d[i] << 16 | d[i+1] << 8 | d[i+2]);
		if (d[i] === 0xcf && d[i+1] === 0x22 && d[i+2] === 0x2e) red++;
	}
	done({Colors: colors.size, Red: red, Range: timeline.range(), Whole: timeline.whole(), Text: document.getElementById("violations").textContent});
})))`

func TestPageShowsViolationInBrowser(t *testing.T) {
	path := writePage(t, plantedHistory(4000))
	page := openPage(t, path)
	after := func(action string) drawn {
		t.Helper()
		return eval[drawn](page, action+"; "+readDrawn)
	}
	// The page opens at the first violation.
	first := after("0")
	if first.Colors < 10 {
		t.Errorf("the canvas shows %d colours: it is blank", first.Colors)
	}
	if first.Red < 50 {
		t.Errorf("the violation is not in view: %d red dots", first.Red)
	}
	if !strings.Contains(first.Text, `"name-1" was held by 2 at once`) || !strings.Contains(first.Text, "w3") {
		t.Errorf("the page does not describe the violation: %q", first.Text)
	}
	if first.Range[1]-first.Range[0] > (first.Whole[1]-first.Whole[0])/4 {
		t.Errorf("the page opens at %v of %v, want the surroundings of the violation", first.Range, first.Whole)
	}
	if *updateImage {
		shot := page.screenshot()
		if _, err := png.Decode(bytes.NewReader(shot)); err != nil {
			t.Fatal(err)
		}
		must.Succeed(t, os.MkdirAll("../docs/images", 0o755))
		must.Succeed(t, os.WriteFile("../docs/images/check-timeline.png", shot, 0o644))
	}
	// The buttons zoom.
	whole := after(`document.getElementById("all").click()`)
	if whole.Range != whole.Whole {
		t.Errorf("the button all shows %v of %v, want everything", whole.Range, whole.Whole)
	}
	in := after(`document.getElementById("in").click()`)
	if got, want := in.Range[1]-in.Range[0], (whole.Range[1]-whole.Range[0])/2; got < want*.99 || got > want*1.01 {
		t.Errorf("zooming in shows %v, want half of %v", in.Range, whole.Range)
	}
	// The wheel zooms around the pointer.
	wheel := after(`document.getElementById("timeline").dispatchEvent(new WheelEvent("wheel", {deltaY: -400, clientX: 700, clientY: 400, cancelable: true}))`)
	if wheel.Range[1]-wheel.Range[0] >= in.Range[1]-in.Range[0] {
		t.Errorf("the wheel shows %v, want less than %v", wheel.Range, in.Range)
	}
	moved := after(`document.getElementById("timeline").dispatchEvent(new KeyboardEvent("keydown", {key: "ArrowRight"}))`)
	if moved.Range[0] <= wheel.Range[0] {
		t.Errorf("an arrow key leaves %v at %v", wheel.Range, moved.Range)
	}
	// A filter hides the elements of its kind or name.
	if l := after(`timeline.show(0); document.querySelector("input[data-kind=violations]").click()`); l.Red >= first.Red {
		t.Errorf("without violations there are %d red dots, with them %d", l.Red, first.Red)
	}
	if l := after(`document.querySelector("input[data-kind=violations]").click(); timeline.choose("name", 0)`); l.Red >= first.Red/2 {
		t.Errorf("with only another name there are %d red dots, with all names %d", l.Red, first.Red)
	}
	// Hovering shows a description of the element under the pointer.
	tip := eval[string](page, `timeline.choose("name", -1); timeline.show(0); (() => {
		const c = document.getElementById("timeline"), box = c.getBoundingClientRect(), tip = document.getElementById("tip");
		for (let y = 30; y < box.height; y += 5) {
			c.dispatchEvent(new PointerEvent("pointermove", {clientX: box.left + box.width / 2, clientY: box.top + y, bubbles: true}));
			if (tip.textContent.includes("holds") && tip.textContent.includes("VIOLATION")) return tip.textContent;
		}
		return "nothing";
	})()`)
	if !strings.Contains(tip, "holds exclusive, token") {
		t.Errorf("hovering shows %q", tip)
	}
	// The printed page has no controls, and keeps the texts.
	page.emulatePrint()
	printed := eval[string](page, `getComputedStyle(document.querySelector(".bar.screen")).display + " " + getComputedStyle(document.querySelector(".violation")).display`)
	if printed != "none block" {
		t.Errorf("in print the controls and the violations are %q, want none and block", printed)
	}
}

// TestPageDrawsLargeHistory draws 100,000 events twice and limits the time. So no other
// test runs at the same time.
func TestPageDrawsLargeHistory(t *testing.T) {
	path := writePage(t, plantedHistory(100_000))
	if st, err := os.Stat(path); err != nil || st.Size() > 20<<20 {
		t.Errorf("the page has %d bytes (%v), want at most 20 MB", st.Size(), err)
	}
	page := openPage(t, path)
	l := eval[drawn](page, `timeline.setView(...timeline.whole()); `+readDrawn)
	took := eval[float64](page, `(() => { const t = performance.now(); for (let i = 0; i < 10; i++) paint(); return (performance.now() - t) / 10; })()`)
	t.Logf("a frame of the whole history takes %.1f ms", took)
	if l.Colors < 10 || l.Red == 0 {
		t.Errorf("%d colours, %d red dots: want the history and its violation", l.Colors, l.Red)
	}
	if took > 1000 {
		t.Errorf("a frame takes %.0f ms, which is too long", took)
	}
}
