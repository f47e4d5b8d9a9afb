package redisstore

import (
	_ "embed"
	"strings"

	"github.com/holdfast-go/holdfast/redisstore/internal/server"
)

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
)

// newScript returns a script of this package. It replaces the lines "-- include plain" and
// "-- include common" by the texts of plain.lua and common.lua.
func newScript(name, source string) *Script {
	source = strings.Replace(source, "-- include plain\n", plainSource, 1)
	return server.NewScript(name, strings.Replace(source, "-- include common\n", commonSource, 1))
}
