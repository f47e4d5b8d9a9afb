package cli

import (
	"os"

	"github.com/spf13/cobra"

	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/console"
)

// Command returns the whole command, for programs that print its documentation.
func Command() *cobra.Command { return newRoot(console.New(os.Stderr)) }
