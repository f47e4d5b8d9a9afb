//go:build !linux && !darwin

package cli

import (
	"errors"

	"github.com/spf13/cobra"

	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/console"
)

// worker does nothing: on this system no check starts worker processes.
func worker() {}

// newCheck returns a hidden command that reports where it runs. newLab does the same.
func newCheck(*console.Printer) *cobra.Command {
	return &cobra.Command{
		Use: "check", Short: "Torture a store and judge what happens (Linux and macOS only)", Hidden: true,
		RunE: func(*cobra.Command, []string) error { return errors.New("check runs on Linux and macOS only") },
	}
}

func newLab(*console.Printer) *cobra.Command {
	return &cobra.Command{
		Use: "lab", Short: "Show how locks go wrong (Linux and macOS only)", Hidden: true,
		RunE: func(*cobra.Command, []string) error { return errors.New("lab runs on Linux and macOS only") },
	}
}
