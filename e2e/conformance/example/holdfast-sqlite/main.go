//go:build linux

// Holdfast-sqlite is the holdfast command with the example's store, and with files
// for those who name none.
package main

import (
	"os"

	"github.com/holdfast-go/holdfast/cmd/holdfast/command"

	_ "github.com/holdfast-go/holdfast/e2e/conformance/example/sqlitestore"
	_ "github.com/holdfast-go/holdfast/filestore"
)

func main() { os.Exit(command.Main(os.Args[1:])) }
