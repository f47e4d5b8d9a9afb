package cli

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/redact"
	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/say"
	"github.com/holdfast-go/holdfast/driver"
)

// initializer is a store that needs something to be made before its first use.
type initializer interface{ Init(context.Context) error }

// initWithin bounds the work of a database that must answer.
const initWithin = time.Minute

func newInit(p *say.Printer) *cobra.Command {
	return &cobra.Command{
		Use:   "init URL",
		Short: "Create the tables of a store in a database",
		Long: `Init creates the tables that a store in a database needs, unless they are there.
It may be run again. The user of the URL needs the right to create tables; those who
lock need fewer. Other stores need nothing and are left alone.

Exit status:
  64   bad usage, or the URL is wrong
  69   the store cannot be reached or does not answer
  78   the store refused`,
		Example: `  holdfast init "mysql://admin:secret@db.example/app"
  holdfast init postgres://admin@db.example/app`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 1 {
				return fmt.Errorf("%d arguments: give one URL", len(args))
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			p.Hide(redact.Secrets(args[0]))
			if err := checkURL("URL", args[0]); err != nil {
				return err
			}
			ctx, stop := signal.NotifyContext(cmd.Context(), os.Interrupt, syscall.SIGTERM)
			defer stop()
			ctx, cancel := context.WithTimeout(ctx, initWithin)
			defer cancel()
			done, err := initialise(ctx, args[0])
			if err != nil {
				return err
			}
			if done {
				p.Line("the tables are there")
			} else {
				p.Line("this store needs no tables")
			}
			return nil
		},
	}
}

// initialise answers false if there was nothing to do.
func initialise(ctx context.Context, raw string) (bool, error) {
	u, err := url.Parse(raw)
	if err != nil {
		return false, errors.New("URL: not a URL") // checked before
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

// storeError gives a store's error the meaning that the library's have.
func storeError(err error) error {
	kind := holdfast.ErrUnavailable
	switch driver.CodeOf(err) {
	case driver.Refused:
		kind = holdfast.ErrRefused
	case driver.Invalid:
		kind = holdfast.ErrInvalid
	case driver.Unsupported:
		kind = holdfast.ErrUnsupported
	}
	return fmt.Errorf("%w: %w", kind, err)
}
