//go:build linux || darwin

package main_test

import (
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/cli"
)

// TestInspectionsRefuseBadInput: the subcommands that inspect or break locks, and the subcommands check
// and completion, refuse every invalid input. TestBadInputIsRefused does the same for run.
func TestInspectionsRefuseBadInput(t *testing.T) {
	long := strings.Repeat("n", 513)
	for name, c := range map[string]struct{ args, message []string }{
		"ls, two":               {[]string{"ls", "a", "b"}, []string{"2 arguments", "one PREFIX, or none"}},
		"ls, long":              {[]string{"ls", long}, []string{"PREFIX", "513", "512"}},
		"ls, waiters":           {[]string{"ls", "--waiters=all"}, []string{"--waiters", `"all"`, "true or false"}},
		"show, none":            {[]string{"show"}, []string{"NAME is missing", "holdfast show [flags] NAME"}},
		"show, two":             {[]string{"show", "a", "b"}, []string{"2 arguments", "one NAME", "quote"}},
		"show, empty":           {[]string{"show", ""}, []string{"NAME", "empty", "1 to 512"}},
		"show, bad UTF-8":       {[]string{"show", "a\xff"}, []string{"NAME", `a\xff`, "UTF-8"}},
		"break, none":           {[]string{"break", "--token", "1"}, []string{"NAME is missing"}},
		"break, two":            {[]string{"break", "--token", "1", "a", "b"}, []string{"2 arguments", "one NAME"}},
		"break, no token":       {[]string{"break", "x"}, []string{"--token is missing", "holdfast show NAME"}},
		"break, token zero":     {[]string{"break", "--token", "0", "x"}, []string{"--token", `"0"`, "1 to 2^63-1"}},
		"break, token negative": {[]string{"break", "--token", "-1", "x"}, []string{"--token", `"-1"`, "1 to 2^63-1"}},
		"break, token high":     {[]string{"break", "--token", "9223372036854775808", "x"}, []string{"--token", `"9223372036854775808"`, "1 to 2^63-1"}},
		"break, token a word":   {[]string{"break", "--token", "mine", "x"}, []string{"--token", `"mine"`, "holdfast show"}},
		"break, token missing":  {[]string{"break", "x", "--token"}, []string{"--token", "missing"}},
		"break, wait zero":      {[]string{"break", "--wait", "0s", "x"}, []string{"--wait", `"0s"`, "above 0"}},
		"break, wait a word":    {[]string{"break", "--wait", "long", "x"}, []string{"--wait", `"long"`, "duration"}},
		"break, force":          {[]string{"break", "--force=very", "x"}, []string{"--force", `"very"`, "true or false"}},
		"watch, two":            {[]string{"watch", "a", "b"}, []string{"2 arguments", "one NAME, or none"}},
		"watch, empty":          {[]string{"watch", ""}, []string{"NAME", "empty"}},
		"check, which":          {[]string{"check"}, []string{"--local or --store is missing"}},
		"check, both":           {[]string{"check", "--local", "file", "--store", "memory://"}, []string{"--local", "--store", "exclude"}},
		"check, argument":       {[]string{"check", "x"}, []string{"x"}},
		"check, local":          {[]string{"check", "--local", "floppy"}, []string{"--local", `"floppy"`, "memory, "}},
		"check, duration":       {[]string{"check", "--duration", "1ms"}, []string{"--duration", `"1ms"`, "1s to 168h"}},
		"check, round":          {[]string{"check", "--round", "1h"}, []string{"--round", `"1h"`, "1s to 10m"}},
		"check, ttl":            {[]string{"check", "--ttl", "1ms"}, []string{"--ttl", `"1ms"`, "200ms to 1m"}},
		"check, seed":           {[]string{"check", "--seed", "x"}, []string{"--seed", `"x"`, "whole number"}},
		"check, workers":        {[]string{"check", "--workers", "65"}, []string{"--workers", `"65"`, "1 to 64"}},
		"check, names":          {[]string{"check", "--names", "0"}, []string{"--names", `"0"`, "1 to 1000"}},
		"check, faults":         {[]string{"check", "--faults", "a b"}, []string{"--faults", `"a b"`, "commas"}},
		"check, fault":          {[]string{"check", "--local", "memory", "--faults", "flood"}, []string{"--faults", `"flood"`, "choose from"}},
		"check, dir":            {[]string{"check", "--dir", ""}, []string{"--dir", `""`, "directory"}},
		"check, dir taken":      {[]string{"check", "--local", "memory", "--dir", "/dev/null"}, []string{"--dir", `"/dev/null"`, "directory"}},
		"completion, none":      {[]string{"completion"}, []string{"no shell given", "completion --help"}},
		"completion, two":       {[]string{"completion", "zsh", "bash"}, []string{`"bash"`, "completion zsh"}},
		"completion, unknown":   {[]string{"completion", "tcsh"}, []string{`"tcsh"`, "completion"}},
	} {
		t.Run(name, func(t *testing.T) { refuses(t, c.args, append(c.message, "--help")...) })
	}
}

// invalidValues contains an invalid value for a flag. A flag without an entry refuses any word.
var invalidValues = map[string]string{
	"namespace": strings.Repeat("n", 513), "reason": "\xff", "store": "floppy://a", "store-file": "no-such-file",
	"dir": "", "faults": "a b", "once": strings.Repeat("k", 513),
}

// TestEveryFlagRefusesBadInput: every flag refuses an invalid value before the command opens a
// store. The message names the flag and the value.
func TestEveryFlagRefusesBadInput(t *testing.T) {
	otherArgs := map[string][]string{"run": {"x", "--", "touch", "ran"}, "show": {"x"}, "hold": {"--pid", strconv.Itoa(os.Getpid()), "x"}, "break": {"--token", "1", "x"}}
	seen := 0
	everyFlag(cli.Command(), func(cmd *cobra.Command, f *pflag.Flag) {
		if !cmd.Runnable() {
			return
		}
		seen++
		value, ok := invalidValues[f.Name]
		if !ok {
			value = "perhaps"
		}
		path := strings.Fields(cmd.CommandPath())[1:]
		args := append(slices.Clone(path), "--"+f.Name+"="+value)
		if len(path) > 0 {
			args = append(args, otherArgs[path[0]]...)
		}
		t.Run(strings.Join(append(slices.Clone(path), f.Name), " "), func(t *testing.T) {
			shown, _, _ := strings.Cut(strings.Trim(strconv.Quote(value), `"`), ":") // the message shows only the scheme of a URL
			refuses(t, args, "--"+f.Name, shown[:min(len(shown), 40)])
		})
	})
	if seen < 20 {
		t.Errorf("only %d flags, want at least 20", seen)
	}
}

func everyFlag(cmd *cobra.Command, do func(*cobra.Command, *pflag.Flag)) {
	cmd.LocalFlags().VisitAll(func(f *pflag.Flag) { do(cmd, f) })
	for _, c := range cmd.Commands() {
		everyFlag(c, do)
	}
}

// TestInspectionsPrintNoPassword: a subcommand that succeeds prints no password. Completion prints nothing after an
// error.
func TestInspectionsPrintNoPassword(t *testing.T) {
	const withPassword = "scripted://me:s3cr3t-pw@"
	w := newSandbox(t)
	env := []string{"HOLDFAST_STORE=" + withPassword + "refused"}
	for _, args := range [][]string{{"ls", "--json"}, {"show", "--json", "x"}, {"show", "x"}} {
		r := w.runScripted(env, args...).expectStatus(t, 0)
		if strings.Contains(r.stdout+r.stderr, "s3cr3t") {
			t.Errorf("%q printed:\n%s%s", args, r.stdout, r.stderr)
		}
	}
	r := w.runScripted([]string{"HOLDFAST_STORE=" + withPassword + "nowhere"}, "__complete", "show", "")
	if r.status != 0 || strings.Contains(r.stdout+r.stderr, "s3cr3t") {
		t.Errorf("completion: %+v", r)
	}
}
