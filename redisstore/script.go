package redisstore

import (
	"crypto/sha1"
	_ "embed"
	"encoding/hex"
	"strings"
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

//go:embed scripts/plain.lua
var plainSource string

//go:embed scripts/common.lua
var commonSource string

//go:embed scripts/acquire.lua
var acquireSource string

//go:embed scripts/combined.lua
var combinedSource string

//go:embed scripts/release.lua
var releaseSource string

//go:embed scripts/renew.lua
var renewSource string

//go:embed scripts/check.lua
var checkSource string

//go:embed scripts/undo.lua
var undoSource string

//go:embed scripts/break.lua
var breakSource string

//go:embed scripts/inspect.lua
var inspectSource string

//go:embed scripts/raise.lua
var raiseSource string

//go:embed scripts/run_id.lua
var runIDSource string

var (
	acquireScript  = newScript("acquire", acquireSource)
	combinedScript = newScript("combined", combinedSource)
	releaseScript  = newScript("release", releaseSource)
	renewScript    = newScript("renew", renewSource)
	checkScript    = newScript("check", checkSource)
	undoScript     = newScript("undo", undoSource)
	breakScript    = newScript("break", breakSource)
	inspectScript  = newScript("inspect", inspectSource)
	raiseScript    = newScript("raise", raiseSource)
	runIDScript    = newScript("run_id", runIDSource)
)

// newScript returns a script of this package. It replaces the lines "-- include plain" and
// "-- include common" by the texts of plain.lua and common.lua.
func newScript(name, source string) *Script {
	source = strings.Replace(source, "-- include plain\n", plainSource, 1)
	return NewScript(name, strings.Replace(source, "-- include common\n", commonSource, 1))
}

// NewScript returns a script with this source, for a package that keeps other data through a
// [Client].
func NewScript(name, source string) *Script {
	sum := sha1.Sum([]byte(source))
	return &Script{Name: name, Source: source, SHA: hex.EncodeToString(sum[:])}
}
