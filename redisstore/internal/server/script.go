package server

import (
	"crypto/sha1"
	_ "embed"
	"encoding/hex"
)

// Script is a Lua script that runs at the server.
type Script struct {
	// Name is for error messages.
	Name string
	// Source is the script's text.
	Source string
	// SHA is the SHA-1 of Source in hexadecimal. The server finds a cached script by its SHA.
	SHA string
}

//go:embed scripts/run_id.lua
var runIDSource string

var runIDScript = NewScript("run_id", runIDSource)

// NewScript returns a script with this source, for a package that keeps other data through a
// [Client].
func NewScript(name, source string) *Script {
	sum := sha1.Sum([]byte(source))
	return &Script{Name: name, Source: source, SHA: hex.EncodeToString(sum[:])}
}
