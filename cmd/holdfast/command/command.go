// Package command is the holdfast command, for programs that link other stores. The main
// function of such a program only calls Main.
//
//	import (
//		"github.com/holdfast-go/holdfast/cmd/holdfast/command"
//		_ "example.com/locks/mystore"
//	)
//
//	func main() { os.Exit(command.Main(os.Args[1:])) }
//
// The command offers the schemes of the stores that its program links, and starts
// that program again as its own guardian and as the workers of a check.
package command

import "github.com/holdfast-go/holdfast/cmd/holdfast/internal/cli"

// Main runs the command with the arguments after its name and returns the exit status: those
// of docs/command.md.
func Main(args []string) int { return cli.Main(args) }
