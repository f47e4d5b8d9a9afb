package live

import (
	"fmt"
	"strings"
	"testing"
	"time"

	tea "charm.land/bubbletea/v2"

	"github.com/holdfast-go/holdfast/driver"
)

func press(m model, k tea.Key) (model, tea.Cmd) {
	next, cmd := m.Update(tea.KeyPressMsg(k))
	return next.(model), cmd
}

func send(m model, msg tea.Msg) model {
	next, _ := m.Update(msg)
	return next.(model)
}

// TestLinesFitTheScreen requires that the lines fit the screen at every scroll position, and that
// the user can scroll to every row.
func TestLinesFitTheScreen(t *testing.T) {
	now := time.Now()
	var states []driver.State
	for i := range 50 {
		states = append(states, driver.State{Name: fmt.Sprintf("name-%02d", i),
			Holders: []driver.Holder{{Token: 1, Limit: 1, Slot: driver.NoSlot, TTL: driver.Forever}},
			Waiters: []driver.Waiter{{Limit: 1}}})
	}
	m := model{title: "all locks"}
	if got := m.lines(now); got != nil {
		t.Errorf("without a size: %q", got)
	}
	m = send(m, tea.WindowSizeMsg{Width: 60, Height: 13})
	if got := m.lines(now); len(got) != 1 || !strings.Contains(got[0], "reading") {
		t.Errorf("without an answer: %q", got)
	}
	m = send(m, loaded{states, now})
	has := func(want ...string) {
		t.Helper()
		lines := m.lines(now)
		if len(lines) > m.height {
			t.Errorf("%d lines on %d", len(lines), m.height)
		}
		for _, w := range want {
			if !strings.Contains(strings.Join(lines, "\n"), w) {
				t.Errorf("no %q:\n%s", w, strings.Join(lines, "\n"))
			}
		}
	}
	has("50 held, 50 waiting", "NAME", "name-00", "name-09", "rows 1 to 10 of 50")
	m, _ = press(m, tea.Key{Code: tea.KeyDown})
	has("name-01", "name-10", "rows 2 to 11")
	m, _ = press(m, tea.Key{Code: tea.KeyPgDown})
	has("rows 12 to 21")
	m, _ = press(m, tea.Key{Code: tea.KeyEnd})
	has("name-49", "rows 41 to 50")
	m, _ = press(m, tea.Key{Code: tea.KeyDown})
	has("rows 41 to 50")
	m, _ = press(m, tea.Key{Code: 'w', Text: "w"})
	has("waiter 1", "of 100")
	m, _ = press(m, tea.Key{Code: tea.KeyHome})
	m, _ = press(m, tea.Key{Code: tea.KeyUp})
	has("rows 1 to 10 of 100")
	m = send(m, loaded{states[:1], now})
	has("1 held, 1 waiting", "name-00")
	m = send(m, tea.WindowSizeMsg{Width: 5, Height: 1})
	for _, l := range m.lines(now) {
		if len([]rune(l)) > 5 {
			t.Errorf("%q is wider than 5", l)
		}
	}
}

// TestKeysEndTheView: q, Ctrl-C and Ctrl-Z end the view.
func TestKeysEndTheView(t *testing.T) {
	m, cmd := press(model{}, tea.Key{Code: 'q', Text: "q"})
	if _, quits := cmd().(tea.QuitMsg); !quits || m.err != nil {
		t.Errorf("q: %T, %v", cmd(), m.err)
	}
	m, cmd = press(model{}, tea.Key{Code: 'c', Mod: tea.ModCtrl})
	if _, quits := cmd().(tea.QuitMsg); !quits || m.err != ErrInterrupted {
		t.Errorf("Ctrl-C: %T, %v", cmd(), m.err)
	}
	_, cmd = press(model{}, tea.Key{Code: 'z', Mod: tea.ModCtrl})
	if _, stops := cmd().(tea.SuspendMsg); !stops {
		t.Errorf("Ctrl-Z: %T", cmd())
	}
}
