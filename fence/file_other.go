//go:build !(linux || darwin || freebsd || netbsd || openbsd || dragonfly)

package fence

import (
	"context"
	"fmt"
	"io"
	"runtime"
)

// Write returns [ErrUnsupported] on this system.
func (f *File) Write(context.Context, uint64, []byte) error { return unsupported() }

// WriteFunc returns [ErrUnsupported] on this system.
func (f *File) WriteFunc(context.Context, uint64, func(io.Writer) error) error { return unsupported() }

// Raise returns [ErrUnsupported] on this system.
func (f *File) Raise(context.Context, uint64) error { return unsupported() }

// Newest returns [ErrUnsupported] on this system.
func (f *File) Newest(context.Context) (uint64, error) { return 0, unsupported() }

func unsupported() error {
	return fmt.Errorf("%w: File needs flock, which %s does not have", ErrUnsupported, runtime.GOOS)
}
