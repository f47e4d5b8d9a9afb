//go:build linux

package main_test

import (
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"syscall"
	"testing"
)

// A tool is holdfast run or flock(1). The test puts both into the same situations.
type tool struct {
	name  string
	hold  []string // the words before the command
	try   []string // without waiting
	wait  func(s *processSandbox, p *process)
	waits func(p *process) bool // reports whether the process still waits
}

var holdfastTool = tool{
	name:  "holdfast run",
	hold:  []string{"$holdfast", "run", "--grace", "200ms", "x", "--"},
	try:   []string{"$holdfast", "run", "--try", "x", "--"},
	wait:  func(s *processSandbox, _ *process) { awaitQueue(s.t, s.locker(), 1) },
	waits: func(*process) bool { return false }, // flock ends together with every process that it waits for
}

var flockTool = tool{
	name:  "flock",
	hold:  []string{"flock", "lock"},
	try:   []string{"flock", "-n", "lock"},
	wait:  func(_ *processSandbox, p *process) { await(p, func() bool { return blocked(p) }) },
	waits: blocked,
}

func await(p *process, happened func() bool) {
	p.t.Helper()
	awaitState(p.t, p.cmd.Process.Pid, "S")
	for !happened() {
		must(p.t, syscall.Kill(p.cmd.Process.Pid, 0))
	}
}

// blocked reports whether flock waits for a lock.
func blocked(p *process) bool {
	b, _ := os.ReadFile("/proc/locks")
	return regexp.MustCompile(fmt.Sprintf(`-> FLOCK +ADVISORY +WRITE %d `, p.cmd.Process.Pid)).Match(b)
}

func (s *processSandbox) tool(words []string, command ...string) *process {
	s.t.Helper()
	words = append(append([]string(nil), words...), command...)
	if words[0] == "$holdfast" {
		words[0] = binary
	}
	return s.startCmd(exec.Command(words[0], words[1:]...), nil)
}

// shellStatus returns the status as a shell reports it.
func (p *process) shellStatus() string {
	p.t.Helper()
	n := p.status()
	if ws, ok := p.cmd.ProcessState.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
		n = 128 + int(ws.Signal())
	}
	return fmt.Sprint(n)
}

// A situation is one line of the table. It has either test processes and a waiting process, or a
// status.
type situation struct {
	what  string
	words []string
	event func(s *processSandbox, p *process)
	// goesOn is set if holdfast run ends with the command, and not with the event.
	goesOn bool
	status func(s *processSandbox, tool tool) string
}

func kill(sig syscall.Signal) func(*processSandbox, *process) {
	return func(_ *processSandbox, p *process) { p.signal(sig) }
}

func plain(words ...string) func(*processSandbox, tool) string {
	return func(s *processSandbox, t tool) string { return s.tool(t.hold, words...).shellStatus() }
}

// piped runs a shell script in which $tool stands for the tool's words.
func piped(script, want string) func(*processSandbox, tool) string {
	return func(s *processSandbox, t tool) string {
		s.t.Helper()
		c := exec.Command("sh", "-c", strings.ReplaceAll(script, "$tool", strings.Join(t.hold, " ")))
		r := s.finish(c, []string{"holdfast=" + binary}, "")
		out, status, _ := strings.Cut(r.stdout, "status ")
		if out != want {
			s.t.Errorf("%s: output %q", t.name, r.stdout)
		}
		return strings.TrimSpace(status)
	}
}

// typed runs the tool in an interactive shell. Then talk types into the command that the tool
// runs.
func typed(command string, talk func(p *process)) func(*processSandbox, tool) string {
	return func(s *processSandbox, t tool) string {
		s.t.Helper()
		p := s.onTerminal(exec.Command("sh", "-i"))
		// Split, so that the echo of a line is not taken for the prompt that it sets.
		p.atPrompt(`stty -echo; seq 1000 >text; PS1=inn'er:'`)
		p.stdout.expectPart("inner:")
		p.send(`PS1=out'er:'; ` + strings.Join(t.hold, " ") + " " + command)
		talk(p)
		p.stdout.expectPart("outer:")
		p.send(`echo "status $?"`)
		status := strings.TrimSpace(strings.TrimPrefix(p.stdout.expect("status "), "status "))
		p.send("exit")
		p.status()
		return status
	}
}

var situations = []situation{
	{what: "the command exits with 3", status: plain("sh", "-c", "exit 3")},
	{what: "SIGKILL ends the command", status: plain("sh", "-c", "kill -KILL $$")},
	{what: "the command is not found", status: plain("no-such-command")},
	{what: "the command is not executable", status: func(s *processSandbox, t tool) string {
		must(s.t, os.WriteFile(s.path("plain"), nil, 0o600))
		return s.tool(t.hold, "./plain").shellStatus()
	}},
	{what: "busy, without waiting", status: func(s *processSandbox, t tool) string {
		p := s.tool(t.hold, s.testProcess("ends")...)
		p.ready()
		return s.tool(t.try, "true").shellStatus()
	}},
	{what: "input from a pipe", status: piped(`{ echo a; echo b; } | $tool cat; echo "status $?"`, "a\nb\n")},
	{what: "the reader of the output has ended", status: piped(`{ $tool yes; echo "status $?" >status; } | head -n 1; cat status`, "y\n")},
	{what: "`sh` on a terminal, left with 7", status: typed("sh", func(p *process) {
		p.stdout.expectPart("outer:") // the inner shell inherits PS1
		p.send("echo $((40 + 2)); exit 7")
		p.stdout.expect("42")
	})},
	{what: "a pager on a terminal, left with q", status: typed("less text", func(p *process) {
		p.stdout.expectPart("\n22")
		p.key(' ')
		p.stdout.expectPart("\n44")
		p.key('q')
	})},
	{what: "Ctrl-C ends the command", status: typed("sleep 1000", func(p *process) {
		awaitForeground(p, "sleep")
		p.key(ctrlC)
	})},
	{what: "Ctrl-Z, `fg`, Ctrl-C", status: typed("sleep 1000", func(p *process) {
		awaitForeground(p, "sleep")
		p.key(ctrlZ)
		p.stdout.expectPart("outer:")
		p.send("fg")
		awaitForeground(p, "sleep")
		p.key(ctrlC)
	})},
	{what: "SIGINT to the tool; the command ends", words: []string{"ends"}, event: kill(syscall.SIGINT)},
	{what: "SIGTERM to the tool; the command ends", words: []string{"ends"}, event: kill(syscall.SIGTERM)},
	{what: "SIGHUP to the tool; the command ends", words: []string{"ends"}, event: kill(syscall.SIGHUP)},
	{what: "SIGTERM to the tool; the command ignores it", words: []string{"ignores"}, event: kill(syscall.SIGTERM), goesOn: true},
	{what: "SIGKILL to the tool", words: []string{"ends"}, event: kill(syscall.SIGKILL)},
	{what: "SIGKILL to the tool; the command ignores SIGTERM", words: []string{"ignores"}, event: kill(syscall.SIGKILL)},
	{what: "SIGKILL to the tool; the command has closed inherited files", words: []string{"closes"}, event: kill(syscall.SIGKILL)},
	{what: "SIGSTOP to the tool, the command ends, SIGCONT", words: []string{"ends"}, event: func(s *processSandbox, p *process) {
		p.signal(syscall.SIGSTOP)
		awaitState(s.t, p.cmd.Process.Pid, "T")
		s.endTestProcesses()
		p.signal(syscall.SIGCONT)
	}},
	{what: "the command ends, its child does not", words: []string{"leaves", "ignores"}, event: func(_ *processSandbox, p *process) { p.send("go") }},
	{what: "the command ends and has left a daemon", words: []string{"daemon", "closes"}, event: func(_ *processSandbox, p *process) { p.send("go") }},
	{what: "SIGKILL to the tool; the command has left a daemon", words: []string{"daemon", "closes"}, event: kill(syscall.SIGKILL)},
}

// awaitForeground waits until a program has the terminal.
func awaitForeground(p *process, name string) {
	p.t.Helper()
	for {
		out, err := exec.Command("ps", "-o", "stat=,comm=", "--sid", fmt.Sprint(p.cmd.Process.Pid)).Output()
		if err != nil {
			p.t.Fatalf("ps: %v", err)
		}
		for line := range strings.Lines(string(out)) {
			f := strings.Fields(line)
			if len(f) == 2 && f[1] == name && strings.Contains(f[0], "+") && f[0][0] == 'S' {
				return
			}
		}
	}
}

// outcome is the result of a situation: the tool's status, and the next holder's report of the
// processes that are still alive.
type outcome struct{ status, next string }

func (c situation) run(t *testing.T, tool tool) outcome {
	t.Helper()
	s := newProcessSandbox(t)
	if c.status != nil {
		return outcome{status: c.status(s, tool)}
	}
	p := s.tool(tool.hold, s.testProcess(c.words...)...)
	p.ready()
	next := s.tool(tool.hold, s.lister()...)
	tool.wait(s, next)
	c.event(s, p)
	if c.goesOn && tool.name == holdfastTool.name {
		s.run("run", "--try", "x", "--", "true").expectStatus(t, 75)
		s.endTestProcesses()
	}
	o := outcome{status: p.shellStatus()}
	orphans := ""
	if tool.waits(next) {
		orphans = fmt.Sprintf("waits for %d orphaned", len(marked(s.mark)))
		s.endTestProcesses()
	}
	alive := strings.Fields(next.stdout.expect("alive: "))[1]
	switch {
	case orphans != "":
		o.next = orphans
	case alive == "0":
		o.next = "nothing left"
	default:
		o.next = alive + " still runs"
	}
	next.expectStatus(0)
	return o
}

const (
	besideBegin = "<!-- This table is written by a test: go test -run TestBesideFlock -update -->\n"
	besideEnd   = "<!-- The end of the table. -->\n"
)

// TestBesideFlock puts holdfast run and flock(1) into the same situations. It compares the
// results with the table in docs/command.md, which has the situations in which they differ.
func TestBesideFlock(t *testing.T) {
	for _, program := range []string{"flock", "less", "seq"} {
		if _, err := exec.LookPath(program); err != nil {
			missing(t, program)
		}
	}
	text := page(t, "command.md")
	head, rest, ok := strings.Cut(text, besideBegin)
	old, tail, ok2 := strings.Cut(rest, besideEnd)
	if !ok || !ok2 {
		t.Fatal("docs/command.md has no place for the table")
	}
	var b strings.Builder
	b.WriteString("\n| | `holdfast run` | `flock` |\n| --- | --- | --- |\n")
	line := func(what string, ours, theirs outcome) {
		if ours == theirs {
			return
		}
		cell := func(o outcome) string { return strings.TrimSuffix(o.status+", "+o.next, ", ") }
		fmt.Fprintf(&b, "| %s | %s | %s |\n", what, cell(ours), cell(theirs))
	}
	for _, c := range situations {
		t.Run(c.what, func(t *testing.T) {
			line(c.what, c.run(t, holdfastTool), c.run(t, flockTool))
		})
	}
	const setuid = "SIGKILL to the tool; the command is another user's (set-uid)"
	t.Run(setuid, func(t *testing.T) {
		if os.Getuid() != 0 {
			// Without root this test cannot run the set-uid situation, so it keeps the row of the page.
			for l := range strings.Lines(old) {
				if strings.HasPrefix(l, "| "+setuid+" |") {
					b.WriteString(l)
				}
			}
			t.Skip("only root can make a program set-uid and run as another user")
		}
		line(setuid, runSetuid(t, holdfastTool), runSetuid(t, flockTool))
	})
	b.WriteString("\n")
	if t.Failed() {
		return
	}
	if *update {
		must(t, os.WriteFile("../../docs/command.md", []byte(head+besideBegin+b.String()+besideEnd+tail), 0o644))
	} else if old != b.String() {
		t.Errorf("docs/command.md has\n%s\nthe test found\n%s\nrun go test -run TestBesideFlock -update", old, b.String())
	}
}
