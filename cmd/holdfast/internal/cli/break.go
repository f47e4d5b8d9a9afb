package cli

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/console"
	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/exit"
	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/view"
	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/shape"
)

const breakLong = `Break takes a lock away from its holder: the one grant that carries the token,
which holdfast show prints. It never takes a later grant. On a
terminal, without --token, it shows the holder and requests a confirmation.

Some stores cannot take a lock away (see holdfast stores). They notify the holder,
which keeps the lock until it has ended; break waits for that. A command under holdfast
run then gets SIGTERM, and SIGKILL after its grace, and holdfast run ends with
status 74. A stopped holder does not receive the notification.

` + inspectEnvironment + `

Exit status:
  0    the grant has ended
  64   bad usage, or no token and no terminal
  69   the store cannot be reached or does not answer
  75   not broken: this grant does not exist, the holder still holds it after
       --wait, or the answer was no
  78   the store refused, or does not support the request
  128+n  signal n ended it`

// breakFlags contains the values of break's flags.
type breakFlags struct {
	store storeFlags
	token token
	wait  duration
	force bool
}

type token struct {
	n     uint64
	given bool
}

func (v *token) Set(s string) error {
	n, err := strconv.ParseUint(s, 10, 64)
	if err != nil || n == 0 || n >= driver.MaxToken {
		return errors.New("give the token that holdfast show prints, a whole number from 1 to 2^63-1")
	}
	v.n, v.given = n, true
	return nil
}

func (v *token) Type() string { return "number" }

func (v *token) String() string {
	if v.n == 0 {
		return ""
	}
	return strconv.FormatUint(v.n, 10)
}

func newBreak(p *console.Printer) *cobra.Command {
	f := &breakFlags{wait: duration{d: 30 * time.Second, least: 1, most: math.MaxInt64, allowed: "a duration above 0"}}
	cmd := &cobra.Command{
		Use:   "break [flags] NAME",
		Short: "Take a lock away from its holder",
		Long:  breakLong,
		Example: `  holdfast break nightly
  holdfast break --token 1753369210123456 nightly`,
		Args:              oneName("NAME", false),
		ValidArgsFunction: completeNames(&f.store),
		RunE: func(cmd *cobra.Command, args []string) error {
			if !f.token.given && !p.Terminal() {
				return errNoToken
			}
			return inspect(cmd, &f.store, p, func(ctx context.Context, l *holdfast.Locker) error {
				b := &breaker{breakFlags: f, name: args[0], printer: p, locker: l}
				return b.run(ctx)
			})
		},
	}
	f.store.add(cmd)
	flags := cmd.Flags()
	flags.Var(&f.token, "token", "the fencing token of the grant, as holdfast show prints it\n(default: show the holder and request a confirmation, on a terminal only)")
	flags.Var(&f.wait, "wait", "how long to wait until a notified holder has ended")
	flags.BoolVar(&f.force, "force", false, "do not wait for the holder, where the store can take a lock away at once")
	return cmd
}

var errNoToken = errors.New("--token is missing, and there is no terminal for a confirmation: give the token that holdfast show NAME prints")

type breaker struct {
	*breakFlags
	name    string
	printer *console.Printer
	locker  *holdfast.Locker
}

func (b *breaker) run(ctx context.Context) error {
	g, err := b.locker.Guarantees(ctx)
	if err != nil {
		return err
	}
	if b.force && g.Break != driver.BreakNow {
		b.printer.Line("--force: the %s store cannot take a lock away from a live holder; it works like this: %s", g.Kind, g.Break.Describe())
		return exited(exit.Refused)
	}
	var st holdfast.State
	if g.Visible != driver.VisibleNothing {
		if st, err = shape.Inspect(ctx, b.locker, b.name); err != nil {
			return err
		}
		b.name = st.Name
	}
	if !b.token.given {
		if b.token.n, err = b.confirm(ctx, st); err != nil {
			return err
		}
	}
	holder := "its holder"
	h, found := byToken(st, b.token.n)
	switch {
	case found:
		holder = view.Process(h.Owner)
		if g.Break == driver.BreakNotify {
			b.printer.Line("%s is notified, and has %s to end (--wait)", holder, short(b.wait.d))
		}
	case g.Visible != driver.VisibleNothing:
		return b.notGranted(ctx)
	}
	err = b.take(ctx, holder)
	if err == nil {
		b.printer.Line("%q with token %d is taken away from %s", b.name, b.token.n, holder)
	}
	return err
}

// take breaks the grant, and reports the result.
func (b *breaker) take(ctx context.Context, holder string) error {
	waiting, cancel := context.WithTimeout(ctx, b.wait.d)
	defer cancel()
	err := b.locker.Break(waiting, b.name, b.token.n)
	switch {
	case err == nil:
		return nil
	case errors.Is(err, holdfast.ErrNotHeld):
		return b.notGranted(ctx)
	case ctx.Err() != nil:
		b.printer.Line("the wait is over; %s may have been notified already, and may still end", holder)
		return err
	case waiting.Err() == nil:
		return err
	}
	st, inspectErr := b.locker.Inspect(ctx, b.name)
	if inspectErr != nil {
		return err
	}
	h, ok := byToken(st, b.token.n)
	if !ok {
		return nil // the grant ended at the last moment
	}
	what := "it runs, and keeps the lock until it has ended"
	if strings.Contains(h.Note, "stopped") {
		what = fmt.Sprintf("it is stopped: continue it (kill -CONT %d) or kill it", h.PID)
	}
	b.printer.Line("not broken: %s still holds %q %s after it was notified; %s", view.Process(h.Owner), b.name, short(b.wait.d), what)
	return exited(exit.Busy)
}

// notGranted prints that no grant has the token, and prints the present holders.
func (b *breaker) notGranted(ctx context.Context) error {
	now := ""
	if st, err := b.locker.Inspect(ctx, b.name); err == nil {
		var held []string
		for _, h := range st.Holders {
			held = append(held, fmt.Sprintf("with token %d by %s", h.Token, view.Process(h.Owner)))
		}
		now = "; it is free now"
		if len(held) > 0 {
			now = "; now it is held " + strings.Join(held, ", and ")
		}
	}
	b.printer.Line("not broken: no grant of %q has token %d%s", b.name, b.token.n, now)
	return exited(exit.Busy)
}

// byToken returns the holder with a token.
func byToken(st holdfast.State, token uint64) (holdfast.Holder, bool) {
	for _, h := range st.Holders {
		if h.Token == token {
			return h, true
		}
	}
	return holdfast.Holder{}, false
}

// confirm shows the holders on the terminal, requests a confirmation, and returns the token.
func (b *breaker) confirm(ctx context.Context, st holdfast.State) (uint64, error) {
	// Standard input may be a pipe or a file, for example a list of names.
	tty, err := os.OpenFile("/dev/tty", os.O_RDWR, 0)
	if err != nil {
		b.printer.Line("%v", errNoToken)
		return 0, exited(exit.Usage)
	}
	defer tty.Close()
	if len(st.Holders) == 0 {
		b.printer.Line("not broken: %q is free", b.name)
		return 0, exited(exit.Busy)
	}
	if err := view.Page(tty, holdfast.State{Name: st.Name, Holders: st.Holders}, time.Now()); err != nil {
		return 0, err
	}
	question := "\nTake it away? [y/N] "
	if len(st.Holders) > 1 {
		question = "\nTake it away from which holder? Give its token: "
	}
	if _, err := tty.WriteString(question); err != nil {
		return 0, err
	}
	answer, err := readAnswer(ctx, tty)
	if err != nil {
		return 0, err
	}
	if token, ok := chosen(st.Holders, answer); ok {
		return token, nil
	}
	b.printer.Line("not broken: the answer was %q", answer)
	return 0, exited(exit.Busy)
}

// readAnswer reads one line of the terminal, until ctx ends.
func readAnswer(ctx context.Context, tty *os.File) (string, error) {
	answers := make(chan string, 1)
	go func() {
		// Not every terminal supports a read deadline. So the goroutine ends after one line,
		// or when the process ends.
		s, _ := bufio.NewReader(tty).ReadString('\n')
		answers <- strings.TrimSpace(s)
	}()
	select {
	case answer := <-answers:
		return answer, nil
	case <-ctx.Done():
		return "", ctx.Err()
	}
}

// chosen returns the token of the holder that the answer selects: "y" selects the only holder, and a token
// selects one of several holders.
func chosen(holders []holdfast.Holder, answer string) (token uint64, ok bool) {
	if len(holders) == 1 {
		answer = strings.ToLower(answer)
		return holders[0].Token, answer == "y" || answer == "yes"
	}
	for _, h := range holders {
		if answer == strconv.FormatUint(h.Token, 10) {
			return h.Token, true
		}
	}
	return 0, false
}
