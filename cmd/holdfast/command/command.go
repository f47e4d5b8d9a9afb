// Package command contains the holdfast command, for programs that link other stores. The main
// function of such a program only calls Main.
//
//	import (
//		"github.com/holdfast-go/holdfast/cmd/holdfast/command"
//		_ "example.com/locks/mystore"
//	)
//
//	func main() { os.Exit(command.Main(os.Args[1:])) }
//
// The command supports the URL schemes of the stores that the program links. It starts the
// same program again as the guardian of a run and as the workers of a check.
package command

import "github.com/holdfast-go/holdfast/cmd/holdfast/internal/cli"

// Main runs the command with the arguments after the program's name, and returns the exit
// status. docs/command.md lists the statuses.
func Main(args []string) int { return cli.Main(args) }
