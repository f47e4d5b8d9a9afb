package cli

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/console"
	"github.com/holdfast-go/holdfast/driver"
)

// initializer is a store that needs tables before its first use.
type initializer interface{ Init(context.Context) error }

const initWithin = time.Minute

func newInit(p *console.Printer) *cobra.Command {
	var store storeFlags
	file := &store.file
	cmd := &cobra.Command{
		Use:   "init [flags] URL",
		Short: "Create the tables of a store in a database",
		Long: `Init creates the tables that a store in a database needs, unless they are there.
You may run it again. The user of the URL needs the right to create tables; a user that
locks needs fewer rights. Other stores need no tables: init does nothing there. With
--store-file the URL is in a file. Without both it is HOLDFAST_STORE, or in
HOLDFAST_STORE_FILE.

Exit status:
  64   bad usage, or the URL is wrong
  69   the store cannot be reached or does not answer
  78   the store refused
  128+n  signal n ended it`,
		Example: `  holdfast init postgres://admin@db.example/app
  # with a password, which does not belong on a command line:
  holdfast init --store-file admin-url`,
		Args: func(_ *cobra.Command, args []string) error {
			switch {
			case len(args) == 0 && (file.given || os.Getenv(envStore) != "" || os.Getenv(envStoreFile) != ""):
				return nil
			case len(args) != 1:
				return fmt.Errorf("%d arguments: give one URL, or --store-file, or set %s", len(args), envStore)
			case args[0] == "":
				return checkURL("URL", args[0])
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			raw, err := oneURL(p, args, *file)
			if raw == "" && err == nil {
				raw, _, err = store.resolve(p)
			}
			if err != nil {
				return err
			}
			ctx, stop := interruptible(cmd.Context())
			defer stop()
			ctx, cancel := context.WithTimeout(ctx, initWithin)
			defer cancel()
			done, err := initialise(ctx, raw)
			if err != nil {
				return outcome(ctx, p, err)
			}
			if done {
				p.Line("the tables are there")
			} else {
				p.Line("this store needs no tables")
			}
			return nil
		},
	}
	cmd.Flags().Var(file, "store-file", storeFileUsage)
	return cmd
}

// initialise creates the tables of the store at a URL. It returns false if the store needs no
// tables.
func initialise(ctx context.Context, raw string) (bool, error) {
	u, err := url.Parse(raw)
	if err != nil {
		return false, errors.New("URL: not a URL") // not reached: the caller has checked the URL
	}
	open, _ := driver.OpenerOf(u.Scheme)
	s, err := open(ctx, u, "")
	if err != nil {
		return false, storeError(err)
	}
	defer func() { _ = s.Close(context.WithoutCancel(ctx)) }()
	i, ok := s.(initializer)
	if !ok {
		return false, nil
	}
	if err := i.Init(ctx); err != nil {
		return false, storeError(fmt.Errorf("%w", err))
	}
	return true, nil
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
