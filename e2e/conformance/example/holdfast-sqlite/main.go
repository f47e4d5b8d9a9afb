//go:build linux

// Holdfast-sqlite is the holdfast command with the store of the example. It also
// has the file store, which the command uses if no URL is given.
package main

import (
	"os"

	"github.com/holdfast-go/holdfast/cmd/holdfast/command"

	_ "github.com/holdfast-go/holdfast/filestore"
	_ "github.com/holdfast-go/holdfast/sqlitestore"
)

func main() { os.Exit(command.Main(os.Args[1:])) }
