package cli

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/console"
	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/storeurl"
)

// initializer is a store that needs tables or a bucket before its first use.
type initializer interface{ Init(context.Context) error }

// initTimeout limits the creation.
const initTimeout = time.Minute

func newInit(p *console.Printer) *cobra.Command {
	var store storeFlags
	cmd := &cobra.Command{
		Use:   "init [flags] URL",
		Short: "Create the tables or the bucket of a store",
		Long: `Init creates the tables that a store in a database needs, or the bucket of NATS, unless
they are there. You may run it again. The user of the URL needs the right to create them;
a user that locks needs fewer rights. Other stores need no tables: init does nothing
there. With --store-file the URL is in a file. Without both it is HOLDFAST_STORE, or in
HOLDFAST_STORE_FILE.

Exit status:
  64   bad usage, or the URL is wrong
  69   the store cannot be reached or does not answer
  78   the store refused
  128+n  signal n ended it`,
		Example: `  holdfast init postgres://admin@db.example/app
  # with a password, which does not belong on a command line:
  holdfast init --store-file admin-url`,
		Args: store.urlArgument,
		RunE: func(cmd *cobra.Command, _ []string) error {
			raw, _, err := store.resolve(p)
			if err != nil {
				return err
			}
			ctx, stop := interruptible(cmd.Context())
			defer stop()
			ctx, cancel := context.WithTimeout(ctx, initTimeout)
			defer cancel()
			created, err := initialise(ctx, p, raw)
			if err != nil {
				return outcome(ctx, p, err)
			}
			if created {
				p.Line("the store has what it needs")
			} else {
				p.Line("this store needs no tables")
			}
			return nil
		},
	}
	cmd.Flags().Var(&store.file, "store-file", storeFileUsage)
	return cmd
}

// initialise creates the tables of the store at a URL. It returns false if the store needs no
// tables.
func initialise(ctx context.Context, p *console.Printer, raw string) (bool, error) {
	s, err := openDriver(ctx, raw)
	if err != nil {
		return false, err
	}
	defer func() { _ = s.Close(context.WithoutCancel(ctx)) }()
	if e, ok := s.(driver.Exposer); ok && e.Exposed() != "" {
		p.Line("warning: %s", e.Exposed())
	}
	i, ok := s.(initializer)
	if !ok {
		return false, nil
	}
	if err := i.Init(ctx); err != nil {
		return false, storeError(err)
	}
	return true, nil
}

// openDriver opens the store of a URL.
func openDriver(ctx context.Context, raw string) (driver.Store, error) {
	u, err := storeurl.Read(raw)
	if err != nil {
		return nil, errors.New("URL: not a URL") // not reached: the caller has checked the URL
	}
	open, _ := driver.OpenerOf(u.Scheme)
	s, err := open(ctx, u, "")
	if err != nil {
		return nil, storeError(err)
	}
	return s, nil
}

// storeError wraps a store's error in the library's error of the same meaning.
func storeError(err error) error {
	kind := holdfast.ErrUnavailable
	switch driver.CodeOf(err) {
	case driver.CodeRefused:
		kind = holdfast.ErrRefused
	case driver.CodeInvalid:
		kind = holdfast.ErrInvalid
	case driver.CodeUnsupported:
		kind = holdfast.ErrUnsupported
	}
	return fmt.Errorf("%w: %w", kind, err)
}
