//go:build !(linux || darwin || freebsd || netbsd || openbsd || dragonfly)

package fence

import (
	"context"
	"fmt"
	"io"
	"runtime"
)

func (f *file) write(context.Context, uint64, func(io.Writer) error) error { return unsupported() }

func (f *file) raiseMark(context.Context, uint64) error { return unsupported() }

func (f *file) newest(context.Context) (uint64, error) { return 0, unsupported() }

func unsupported() error {
	return fmt.Errorf("%w: Files needs flock, which %s does not have", ErrUnsupported, runtime.GOOS)
}
