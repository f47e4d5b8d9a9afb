// Package command is the holdfast command, for a program that links further stores. The main of
// that program only calls Main.
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

// Main runs the command with the arguments after its name. It returns the exit status, which
// docs/command.md describes.
func Main(args []string) int { return cli.Main(args) }
