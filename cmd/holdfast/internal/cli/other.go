//go:build !linux && !darwin

package cli

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/console"
)

// worker does nothing: on this system no check starts worker processes.
func worker() {}

// helper returns false: on this system no run starts processes.
func helper([]string, *console.Printer) (int, bool) { return 0, false }

func newRun(*console.Printer) *cobra.Command {
	return elsewhere("run", "Hold a lock while a command runs")
}
func newHold(*console.Printer) *cobra.Command {
	return elsewhere("hold", "Hold a lock for the rest of a shell script")
}
func newCheck(*console.Printer) *cobra.Command {
	return elsewhere("check", "Torture a store and judge what happens")
}
func newLab(*console.Printer) *cobra.Command { return elsewhere("lab", "Show how locks go wrong") }

// elsewhere returns a hidden command that reports where it runs.
func elsewhere(name, short string) *cobra.Command {
	return &cobra.Command{
		Use: name, Short: short + " (Linux and macOS only)", Hidden: true, DisableFlagParsing: true,
		RunE: func(*cobra.Command, []string) error { return fmt.Errorf("%s runs on Linux and macOS only", name) },
	}
}
