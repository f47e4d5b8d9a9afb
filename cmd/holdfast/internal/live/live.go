// Package live shows locks on a terminal as they change.
package live

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	tea "charm.land/bubbletea/v2"
	"github.com/charmbracelet/x/term"

	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/view"
	"github.com/holdfast-go/holdfast/driver"
)

// ErrInterrupted reports that the user pressed Ctrl-C. A terminal in raw mode delivers this key as
// input, and sends no signal.
var ErrInterrupted = errors.New("interrupted")

// Source calls its function with the locks' states after each change, until the context ends or
// an error occurs.
type Source func(context.Context, func([]driver.State) error) error

// Run shows the source's states until q or Ctrl-C is pressed, ctx ends or the source fails.
// It then restores the terminal.
func Run(ctx context.Context, title string, waiters bool, source Source) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	// The caller handles the signals, and ends ctx when it receives one.
	options := []tea.ProgramOption{tea.WithoutSignalHandler(), tea.WithOutput(os.Stdout)}
	if !term.IsTerminal(os.Stdin.Fd()) {
		tty, err := os.Open("/dev/tty")
		if err != nil {
			options = append(options, tea.WithInput(nil)) // there are no keys: only a signal ends the view
		} else {
			defer tty.Close()
			options = append(options, tea.WithInput(tty))
		}
	}
	p := tea.NewProgram(model{title: title, waiters: waiters}, options...)
	// Both goroutines end when ctx ends. Send does not block after the program has ended.
	done := make(chan struct{}, 2)
	go func() {
		err := source(ctx, func(states []driver.State) error {
			p.Send(loaded{states, time.Now()})
			return nil
		})
		if ctx.Err() == nil {
			p.Send(failed{err})
		}
		done <- struct{}{}
	}()
	go func() {
		<-ctx.Done()
		p.Quit()
		done <- struct{}{}
	}()
	last, err := p.Run()
	cancel()
	<-done
	<-done
	if err != nil {
		return fmt.Errorf("the terminal: %w", err)
	}
	return last.(model).err
}

// The messages that the view handles.
type (
	loaded struct {
		states []driver.State
		at     time.Time
	}
	failed struct{ err error }
	second struct{}
)

type model struct {
	title   string
	waiters bool // the view has a row for each waiter
	states  []driver.State
	at      time.Time // when the source last reported states
	width   int
	height  int
	top     int // the first visible row
	err     error
}

// tick makes the view update the ages every second, also when no state changes.
func tick() tea.Cmd { return tea.Tick(time.Second, func(time.Time) tea.Msg { return second{} }) }

func (m model) Init() tea.Cmd { return tick() }

func (m model) Update(msg tea.Msg) (tea.Model, tea.Cmd) {
	switch msg := msg.(type) {
	case loaded:
		m.states, m.at = msg.states, msg.at
	case failed:
		m.err = msg.err
		return m, tea.Quit
	case second:
		return m, tick()
	case tea.WindowSizeMsg:
		m.width, m.height = msg.Width, msg.Height
	case tea.KeyPressMsg:
		return m.key(msg.String())
	}
	m.top = m.bounded(m.top)
	return m, nil
}

func (m model) key(k string) (tea.Model, tea.Cmd) {
	switch k {
	case "q":
		return m, tea.Quit
	case "ctrl+c":
		m.err = ErrInterrupted
		return m, tea.Quit
	case "ctrl+z":
		return m, tea.Suspend
	case "w":
		m.waiters = !m.waiters
	case "up", "k":
		m.top--
	case "down", "j":
		m.top++
	case "pgup":
		m.top -= m.room()
	case "pgdown", "space":
		m.top += m.room()
	case "home", "g":
		m.top = 0
	case "end", "G":
		m.top = m.rows()
	}
	m.top = m.bounded(m.top)
	return m, nil
}

// around is the number of lines around the rows: title, heading, and keys.
const around = 3

func (m model) room() int { return max(m.height-around, 1) }

func (m model) rows() int {
	n := 0
	for _, st := range m.states {
		n += view.Rows(st, m.waiters)
	}
	return n
}

func (m model) bounded(top int) int { return max(min(top, m.rows()-m.room()), 0) }

func (m model) View() tea.View {
	v := tea.NewView(strings.Join(m.lines(time.Now()), "\n"))
	v.AltScreen = true
	return v
}

func (m model) lines(now time.Time) []string {
	if m.width == 0 {
		return nil // the terminal's size is not yet known
	}
	cut := func(s string) string { return view.Cut(s, m.width) }
	if m.at.IsZero() {
		return []string{cut(m.title + ": reading the store")}
	}
	held, waiting := 0, 0
	for _, st := range m.states {
		held += min(len(st.Holders), 1)
		waiting += len(st.Waiters)
	}
	// Rows outside the screen also decide the columns' widths, so that the columns do not
	// jump while the user scrolls.
	table := view.Table(m.states, now, m.waiters, m.width)
	rows := table[1:]
	top := m.bounded(m.top)
	shown := rows[top:min(top+m.room(), len(rows))]
	lines := []string{
		cut(fmt.Sprintf("%s: %d held, %d waiting, at %s", m.title, held, waiting, now.Format(time.TimeOnly))),
		table[0],
	}
	lines = append(lines, shown...)
	keys := "q quits, w shows or hides the waiters"
	if len(shown) < len(rows) {
		keys = fmt.Sprintf("rows %d to %d of %d, arrows move; %s", top+1, top+len(shown), len(rows), keys)
	}
	return append(lines, cut(keys))
}
