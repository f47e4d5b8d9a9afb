//go:build linux || darwin

package main_test

import (
	"os"
	"strings"
	"testing"
)

// TestBadInputIsRefused: the command refuses every invalid input before it opens a store. The
// message names the field, the value, and the allowed values.
func TestBadInputIsRefused(t *testing.T) {
	long := strings.Repeat("n", 513)
	for name, c := range map[string]struct {
		args    []string
		message []string
	}{
		"near command":         {[]string{"watsh"}, []string{`unknown command "watsh"`, "nearest is watch\n"}},
		"help on nothing":      {[]string{"help", "rum"}, []string{"no help", `"rum"`}},
		"no command":           {nil, []string{"no command"}},
		"unknown command":      {[]string{"rum"}, []string{"rum"}},
		"no arguments":         {[]string{"run"}, []string{"NAME", "--"}},
		"no dashes":            {[]string{"run", "x", "true"}, []string{"--", "NAME -- COMMAND"}},
		"no dashes, flag":      {[]string{"run", "x", "ls", "-l"}, []string{"-l", "after --"}},
		"no name":              {[]string{"run", "--", "true"}, []string{"NAME"}},
		"empty name":           {[]string{"run", "", "--", "true"}, []string{"NAME", "empty", "1 to 512"}},
		"long name":            {[]string{"run", long, "--", "true"}, []string{"NAME", "513", "512"}},
		"bad UTF-8 in name":    {[]string{"run", "a\xff", "--", "true"}, []string{"NAME", `a\xff`, "UTF-8"}},
		"two names":            {[]string{"run", "x", "y", "--", "true"}, []string{"2", "one NAME"}},
		"no words after":       {[]string{"run", "x", "--"}, []string{"COMMAND"}},
		"empty word after":     {[]string{"run", "x", "--", ""}, []string{"COMMAND"}},
		"unknown flag":         {run("--tll", "3s"), []string{"--tll"}},
		"short flag":           {run("-t"), []string{"-t", "two dashes"}},
		"flag without value":   {[]string{"run", "--ttl"}, []string{"--ttl", "missing"}},
		"ttl, no unit":         {run("--ttl", "30"), []string{"--ttl", `"30"`, "50ms to 24h"}},
		"ttl, no number":       {run("--ttl", "soon"), []string{"--ttl", `"soon"`, "50ms to 24h"}},
		"ttl, too short":       {run("--ttl", "49ms"), []string{"--ttl", `"49ms"`, "50ms to 24h"}},
		"ttl, too long":        {run("--ttl", "25h"), []string{"--ttl", `"25h"`, "50ms to 24h"}},
		"ttl, negative":        {run("--ttl", "-1s"), []string{"--ttl", `"-1s"`, "50ms to 24h"}},
		"grace above ttl/3":    {run("--ttl", "12s", "--grace", "5s"), []string{"--ttl 12s", "--grace 5s", "--ttl 15s", "--grace 4s"}},
		"grace, negative":      {run("--grace", "-1s"), []string{"--grace", `"-1s"`, "from 0s"}},
		"wait, zero":           {run("--wait", "0"), []string{"--wait", `"0"`, "--try"}},
		"wait, zero seconds":   {run("--wait", "0s"), []string{"--wait", `"0s"`, "--try"}},
		"wait, negative":       {run("--wait", "-5s"), []string{"--wait", `"-5s"`, "--try"}},
		"wait, no duration":    {run("--wait", "x"), []string{"--wait", `"x"`, "above 0"}},
		"wait and try":         {run("--wait", "1s", "--try"), []string{"--wait", "--try"}},
		"try, not a bool":      {run("--try=perhaps"), []string{"--try", `"perhaps"`, "true or false"}},
		"shared and limit":     {run("--shared", "--limit", "2"), []string{"--shared", "--limit"}},
		"limit, zero":          {run("--limit", "0"), []string{"--limit", `"0"`, "1 to 4096"}},
		"limit, too large":     {run("--limit", "4097"), []string{"--limit", `"4097"`, "1 to 4096"}},
		"limit, no number":     {run("--limit", "many"), []string{"--limit", `"many"`, "1 to 4096"}},
		"min-hold, negative":   {run("--min-hold", "-1s"), []string{"--min-hold", `"-1s"`, "0s to 24h"}},
		"min-hold, too long":   {run("--min-hold", "25h"), []string{"--min-hold", `"25h"`, "0s to 24h"}},
		"max-hold, zero":       {run("--max-hold", "0s"), []string{"--max-hold", `"0s"`, "above 0"}},
		"on-wanted, unknown":   {run("--on-wanted", "STOP"), []string{"--on-wanted", `"STOP"`, "USR1"}},
		"min above max":        {run("--min-hold", "2m", "--max-hold", "1m"), []string{"--min-hold 2m", "--max-hold 1m"}},
		"reason, too long":     {run("--reason", long), []string{"--reason", "513", "512"}},
		"reason, bad UTF-8":    {run("--reason", "\xff"), []string{"--reason", `\xff`, "UTF-8"}},
		"no store, required":   {run("--require-store"), []string{"no store is given", "--require-store", "HOLDFAST_STORE"}},
		"namespace, too long":  {run("--namespace", long), []string{"--namespace", "513", "128"}},
		"busy-status, high":    {run("--busy-status", "126"), []string{"--busy-status", `"126"`, "0 to 125"}},
		"busy-status, low":     {run("--busy-status", "-1"), []string{"--busy-status", `"-1"`, "0 to 125"}},
		"store, empty":         {run("--store", ""), []string{"--store", "empty", "memory, "}},
		"store, a path":        {run("--store", "/var/locks"), []string{"--store", "scheme", "file:///"}},
		"store, unknown":       {run("--store", "floppy://a"), []string{"--store", `"floppy"`, "memory, "}},
		"store, no URL":        {run("--store", "file://%zz"), []string{"--store", "not a URL"}},
		"store, relative":      {run("--store", "file:locks"), []string{"relative", "file:///"}},
		"store, bad parameter": {run("--store", "file:///tmp/x?mod=1"), []string{"mod"}},
		"store and store-file": {run("--store", "memory://", "--store-file", "f"), []string{"--store", "--store-file"}},
		"store-file, none":     {run("--store-file", "no-such-file"), []string{"--store-file", "no-such-file"}},
		"store-file, empty":    {run("--store-file", ""), []string{"--store-file", `""`, "path"}},
		"stores, empty":        {[]string{"stores", ""}, []string{"URL", "empty", "memory, "}},
		"stores, both":         {[]string{"stores", "memory://", "--store-file", "f"}, []string{"URL", "--store-file", "exclude"}},
		"stores, file":         {[]string{"stores", "--store-file", "no-such-file"}, []string{"--store-file", "no-such-file"}},
		"init, none":           {[]string{"init"}, []string{"0 arguments", "one URL"}},
		"init, empty":          {[]string{"init", ""}, []string{"URL", "empty", "memory, "}},
		"init, both":           {[]string{"init", "memory://", "--store-file", "f"}, []string{"URL", "--store-file", "exclude"}},
		"init, file":           {[]string{"init", "--store-file", "no-such-file"}, []string{"--store-file", "no-such-file"}},
		"doctor, none":         {[]string{"doctor"}, []string{"0 arguments", "one URL"}},
		"doctor, empty":        {[]string{"doctor", ""}, []string{"URL", "empty", "memory, "}},
		"doctor, both":         {[]string{"doctor", "memory://", "--store-file", "f"}, []string{"URL", "--store-file", "exclude"}},
		"lab, mistake":         {[]string{"lab", "no-such"}, []string{`"no-such"`, "delete-anyones"}},
		"lab, all and one":     {[]string{"lab", "--all", "none"}, []string{"--all", "exclude"}},
		"lab, seed":            {[]string{"lab", "--seed", "x"}, []string{"--seed", `"x"`, "whole number"}},
		"lab, duration":        {[]string{"lab", "--duration", "1s"}, []string{"--duration", `"1s"`, "4s to 1h"}},
		"lab, dir":             {[]string{"lab", "--dir", ""}, []string{"--dir", `""`, "directory"}},
		"stores, two":          {[]string{"stores", "file:///a", "file:///b"}, []string{"2", "one URL"}},
		"stores, unknown":      {[]string{"stores", "floppy://a"}, []string{`"floppy"`, "memory, "}},
		"stores, flag":         {[]string{"stores", "--jsom"}, []string{"--jsom"}},
		"version, argument":    {[]string{"version", "x"}, []string{"x"}},
	} {
		t.Run(name, func(t *testing.T) { refuses(t, c.args, c.message...) })
	}
}

// refuses requires that the command refuses its arguments as bad usage, with the words in the message,
// and does nothing.
func refuses(t *testing.T, args []string, words ...string) {
	t.Helper()
	w := newSandbox(t)
	r := w.run(args...).expectStatus(t, 64)
	contains(t, r.stderr, words...)
	if byStore := strings.Contains(r.stderr, "filestore:"); !byStore && !strings.Contains(r.stderr, "--help") {
		t.Errorf("stderr does not point to --help:\n%s", r.stderr)
	}
	// For hold the output is the code that ends the script.
	if r.stdout != "" && args[0] != "hold" {
		t.Errorf("stdout: %q", r.stdout)
	}
	if made, _ := os.ReadDir(w.home); len(made) > 0 {
		t.Errorf("files were created in the home directory: %v", made)
	}
	if _, err := os.Stat(w.path("ran")); err == nil {
		t.Error("the command ran")
	}
}

// run returns the arguments of a run whose command creates the file ran.
func run(flags ...string) []string {
	return append(append([]string{"run"}, flags...), "x", "--", "touch", "ran")
}

// TestEnvironmentStoreIsChecked: the environment's store is checked in the same way as a flag.
func TestEnvironmentStoreIsChecked(t *testing.T) {
	for name, c := range map[string]struct {
		env     []string
		want    int
		message string
	}{
		"unknown scheme": {[]string{"HOLDFAST_STORE=floppy://a"}, 64, "HOLDFAST_STORE"},
		"missing file":   {[]string{"HOLDFAST_STORE_FILE=/no/such/file"}, 64, "HOLDFAST_STORE_FILE"},
		"both":           {[]string{"HOLDFAST_STORE=memory://", "HOLDFAST_STORE_FILE=/f"}, 64, "HOLDFAST_STORE_FILE"},
		"empty":          {[]string{"HOLDFAST_STORE="}, 0, "locks in"},
		"memory":         {[]string{"HOLDFAST_STORE=memory://"}, 0, "other processes are not excluded"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newSandbox(t)
			r := w.runIn(c.env, "", "run", "x", "--", "true").expectStatus(t, c.want)
			contains(t, r.stderr, c.message)
		})
	}
	w := newSandbox(t)
	must(t, os.WriteFile(w.path("url"), []byte(w.storeURL()+"\n"), 0o600))
	r := w.run("run", "--store-file", w.path("url"), "x", "--", "true").expectStatus(t, 0)
	if r.stderr != "" {
		t.Errorf("stderr: %q", r.stderr)
	}
	if _, err := os.Stat(w.path("locks")); err != nil {
		t.Error(err)
	}
}

// TestOutputHasNoPassword searches the whole output of the command for a password.
func TestOutputHasNoPassword(t *testing.T) {
	const password = "s3cr3t-pw"
	withPassword := "scripted://me:" + password + "@"
	for name, args := range map[string][]string{
		"flag":           run("--store", withPassword+"refused"),
		"store's error":  run("--store", withPassword+"password"),
		"no such host":   run("--store", withPassword+"nowhere"),
		"verbose":        run("-v", "--store", withPassword+"unavailable"),
		"unknown scheme": run("--store", "floppy://me:"+password+"@host"),
		"no URL":         run("--store", "redis://me:"+password+"%zz@host"),
		"bad port":       run("--store", "redis://me:"+password+"@host:port"),
		"no scheme":      run("--store", "me:"+password+"@host"),
		"unknown flag":   run("--stor=" + withPassword + "host"),
		"one dash":       run("-store=" + withPassword + "host"),
		"other flag":     run("--ttl", withPassword+"host"),
		"as a name":      {"run", withPassword + "host", "x", "--", "true"},
		"as a command":   {withPassword + "host"},
		"as the query":   run("--store", "scripted://nowhere/?password="+password),
		"in doubt":       append([]string{"run", "-v", "--ttl", "600ms", "--grace", "50ms", "--store", withPassword + "fail-renewal-password", "x"}, "--", "sleep", "1000"),
		"check":          {"check", "--store", withPassword + "nowhere"},
		"check, local":   {"check", "--local", "file", "--store", withPassword + "nowhere"},
		"check, scheme":  {"check", "--store", "floppy://me:" + password + "@host"},
		"check, faults":  {"check", "--local", "file", "--faults", withPassword + "host"},
		"check, dir":     {"check", "--local", withPassword + "host"},
		"completion":     {"completion", withPassword + "host"},
		"version":        {"version", withPassword + "host"},
		"guardian":       {"run-guardian", withPassword + "host", "x"},
		"init":           {"init", withPassword + "nowhere"},
		"init, scheme":   {"init", "floppy://me:" + password + "@host"},
		"probe":          {"stores", withPassword + "refused"},
		"probe, JSON":    {"stores", "--json", withPassword + "refused"},
		"probe, no host": {"stores", withPassword + "nowhere"},
		"ls":             {"ls", "--store", withPassword + "nowhere"},
		"ls, JSON":       {"ls", "--json", "--store", withPassword + "nowhere"},
		"show":           {"show", "--store", withPassword + "nowhere", "x"},
		"break":          {"break", "--token", "1", "--store", withPassword + "nowhere", "x"},
		"watch":          {"watch", "--store", withPassword + "nowhere"},
		"namespace":      {"ls", "--namespace", withPassword + strings.Repeat("n", 128)},
		"store-file":     {"ls", "--store-file", withPassword + "host"},
		"as a second":    {"show", "a", withPassword + "host"},
		"as a switch":    {"ls", "--help=" + withPassword + "host"},
	} {
		t.Run(name, func(t *testing.T) {
			r := newSandbox(t).runScripted(nil, args...)
			if all := r.stdout + r.stderr; strings.Contains(all, password) || strings.Contains(all, "s3cr3t") {
				t.Errorf("printed:\n%s", all)
			} else if all == "" {
				t.Error("nothing was printed")
			}
			warning := map[string]string{
				"flag": "warning: --store shows its password to every user that can list processes: set HOLDFAST_STORE",
				"init": "warning: the URL shows its password", "probe": "warning: the URL shows its password",
			}[name]
			if !strings.Contains(r.stderr, warning) {
				t.Errorf("no warning:\n%s", r.stderr)
			}
		})
	}

	r := newSandbox(t).runScripted([]string{"HOLDFAST_STORE=" + withPassword + "refused"}, run()...)
	r.expectStatus(t, 78)
	if strings.Contains(r.stderr, password) || strings.Contains(r.stderr, "warning: --store") {
		t.Errorf("stderr: %q", r.stderr)
	}
}
