//go:build !unix

package console

import (
	"errors"
	"os"
)

func terminalWidth(*os.File) (int, error) { return 0, errors.ErrUnsupported }
