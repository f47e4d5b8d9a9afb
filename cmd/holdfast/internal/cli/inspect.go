package cli

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/console"
	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/exit"
	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/proc"
	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/filestore"
	"github.com/holdfast-go/holdfast/internal/shape"
	"github.com/holdfast-go/holdfast/memstore"
)

// The subcommands ls, show, watch, break and mcp use the functions below. Such a subcommand ends at the first signal,
// or when the reader of its output has closed the pipe, and leaves nothing behind.

// inspectTimeout is the timeout of one read of all locks. A read of one lock has the library's timeout.
const inspectTimeout = time.Minute

// inspectStatus and inspectEnvironment are the parts of the help that these subcommands share.
const (
	inspectStatus = `
  1    the output cannot be written
  64   bad usage
  69   the store cannot be reached or does not answer
  78   the store refused, or does not support the request
  128+n  signal n ended it; 141 where the reader of its output has gone`

	inspectEnvironment = `Environment:
  HOLDFAST_STORE       the store's URL
  HOLDFAST_STORE_FILE  a file that holds it`
)

// errPipe ends a subcommand whose output has no reader any more.
var errPipe = errors.New("the reader of the output has gone")

// inspect opens the store, calls do with it, and closes it. If an error needs another exit status
// than the one that Main chooses, inspect prints the error and returns that status.
func inspect(cmd *cobra.Command, f *storeFlags, p *console.Printer, do func(context.Context, *holdfast.Locker) error) error {
	storeURL, dir, err := f.resolve(p)
	if err != nil {
		return err
	}
	announce(p, dir)
	ctx, stop := interruptible(cmd.Context())
	defer stop()
	return outcome(ctx, p, inspectStore(ctx, storeURL, f.namespace.s, reads(cmd), p, do))
}

// reads reports whether a subcommand reads the store once.
func reads(cmd *cobra.Command) bool { return cmd.Name() != "watch" && cmd.Name() != "mcp" }

// closeBriefly closes a Locker that holds no lock, so an error of Close does not concern the user.
func closeBriefly(ctx context.Context, l *holdfast.Locker) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	_ = l.Close(ctx)
}

func inspectStore(ctx context.Context, storeURL, namespace string, once bool, p *console.Printer, do func(context.Context, *holdfast.Locker) error) error {
	l, err := open(ctx, storeURL, namespace, once, holdfast.WithHooks(exposure{p}))
	if err != nil {
		return err
	}
	defer closeBriefly(ctx, l)
	g, err := l.Guarantees(ctx)
	if err != nil {
		return err
	}
	switch {
	case g.Scope == driver.ScopeProcess && !strings.HasPrefix(storeURL, "file:"):
		p.Line("warning: the %s store is visible to one process only: the locks of other processes are not in it", g.Kind)
	case g.Scope == driver.ScopeContainer:
		p.Line("warning: the locks are in a layer of this container: those of other containers are not in it")
	}
	return do(ctx, l)
}

// open opens a store. If once is set, the caller reads the store only once. Then open does not
// create a file store's directory that does not exist, and the caller finds no lock.
func open(ctx context.Context, storeURL, namespace string, once bool, o ...holdfast.Option) (*holdfast.Locker, error) {
	if strings.HasPrefix(storeURL, "file:") && once {
		dir, err := filestore.Dir(storeURL)
		if err != nil {
			return nil, storeError(err)
		}
		if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) {
			return holdfast.New(memstore.New())
		}
	}
	return holdfast.Open(ctx, storeURL, append(o, holdfast.Namespace(namespace))...)
}

// exposure are hooks that warn the user of an exposed password.
type exposure struct{ p *console.Printer }

func (e exposure) Start(ctx context.Context, _ holdfast.Event) context.Context { return ctx }

func (e exposure) Event(_ context.Context, ev holdfast.Event) {
	if ev.Kind == holdfast.EventExposed {
		e.p.Line("warning: %v", ev.Err)
	}
}

// interruptible returns a context that ends at the first signal. The second signal kills this
// process.
func interruptible(ctx context.Context) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	sigs := make(chan os.Signal, 1)
	for _, s := range []os.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT} {
		if !signal.Ignored(s) {
			signal.Notify(sigs, s)
		}
	}
	// A write to a closed pipe then returns an error, and no signal kills this process.
	signal.Ignore(syscall.SIGPIPE)
	done := make(chan struct{})
	go func() {
		defer close(done)
		select {
		case s := <-sigs:
			signal.Stop(sigs)
			cancel(proc.Interrupted(s.(syscall.Signal)))
		case <-ctx.Done():
		}
	}()
	return ctx, func() { cancel(nil); <-done; signal.Stop(sigs) }
}

// outcome prints an error if necessary, and returns it with the exit status.
func outcome(ctx context.Context, p *console.Printer, err error) error {
	cause := context.Cause(ctx)
	if s, ok := errors.AsType[proc.Interrupted](cause); ok {
		return exited(exit.BySignal(syscall.Signal(s)))
	}
	_, said := errors.AsType[exited](err)
	switch {
	case errors.Is(err, errPipe), errors.Is(err, syscall.EPIPE):
		return exited(exit.BySignal(syscall.SIGPIPE))
	case err == nil, said, isLibraryError(err):
		return err
	case errors.Is(err, context.DeadlineExceeded):
		p.Line("the store did not answer in time: %v", err)
		return exited(exit.Unavailable)
	}
	p.Line("%v", err)
	return exited(exit.Output)
}

// list returns the states of all names that begin with prefix.
func list(ctx context.Context, l *holdfast.Locker, prefix string) ([]holdfast.State, error) {
	ctx, cancel := context.WithTimeout(ctx, inspectTimeout)
	defer cancel()
	return shape.Collect(l.List(ctx, prefix))
}

// oneName checks that there is one argument, a valid name. With optional, no argument is valid as
// well.
func oneName(what string, optional bool) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		switch {
		case len(args) == 0 && optional:
			return nil
		case len(args) == 0:
			return fmt.Errorf("%s is missing: holdfast %s", what, cmd.Use)
		case len(args) > 1 && optional:
			return fmt.Errorf("%d arguments: give one %s, or none; quote one that has spaces", len(args), what)
		case len(args) > 1:
			return fmt.Errorf("%d arguments: give one %s; quote one that has spaces", len(args), what)
		}
		if err := driver.CheckName(args[0]); err != nil {
			return fmt.Errorf("%s: %v", what, err)
		}
		return nil
	}
}
