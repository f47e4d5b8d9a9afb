//go:build unix

package console

import (
	"os"

	"golang.org/x/sys/unix"
)

func terminalWidth(f *os.File) (int, error) {
	size, err := unix.IoctlGetWinsize(int(f.Fd()), unix.TIOCGWINSZ)
	if err != nil {
		return 0, err
	}
	if size.Col == 0 {
		return 80, nil // the terminal does not report its width
	}
	return int(size.Col), nil
}
