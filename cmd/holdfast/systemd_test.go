//go:build linux

package main_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

// serviceManager is a systemd of the test's own.
type serviceManager struct {
	*deployed
	log string // what systemd and the services have written
}

// asManager makes systemd believe that it has booted the machine, and runs it in a cgroup of its own, in each hierarchy
// that systemd uses.
const asManager = `set -e
mount -t tmpfs tmpfs /run/systemd
mkdir /run/systemd/system
for c in $CGROUPS; do
	test ! -e "${c%/*}/cgroup.procs" || { mkdir "$c"; echo $$ >"$c/cgroup.procs"; }
done
exec /lib/systemd/systemd --user --unit=test.target`

// newServiceManager starts systemd with units. It skips the test where systemd cannot run.
func newServiceManager(t *testing.T, units map[string]string) *serviceManager {
	m := &serviceManager{deployed: newDeployed(t)}
	m.log = m.path("log")
	must(t, os.MkdirAll(m.path("home/.config/systemd/user/service.d"), 0o700))
	must(t, os.Mkdir(m.path("runtime"), 0o700))
	units["test.target"] = "[Unit]\nDefaultDependencies=no\n"
	units["service.d/output.conf"] = "[Service]\nStandardOutput=append:" + m.log + "\nStandardError=append:" + m.log + "\n"
	for name, text := range units {
		m.file("home/.config/systemd/user/"+name, m.here(text))
	}
	var cgroups []string
	for _, hierarchy := range []string{"/sys/fs/cgroup/unified", "/sys/fs/cgroup/systemd", "/sys/fs/cgroup"} {
		cgroups = append(cgroups, filepath.Join(hierarchy, filepath.Base(filepath.Dir(m.dir))))
	}
	m.env = append(m.env, "XDG_RUNTIME_DIR="+m.path("runtime"), "CGROUPS="+strings.Join(cgroups, " "))
	log, err := os.Create(m.log)
	must(t, err)
	defer log.Close()
	c := exec.Command("unshare", "--mount", "sh", "-c", asManager)
	c.Env, c.Stdout, c.Stderr = m.env, log, log
	must(t, c.Start())
	ended := make(chan struct{})
	go func() { defer close(ended); _ = c.Wait() }()
	t.Cleanup(func() {
		m.systemctl("exit")
		<-ended
		_ = exec.Command("find", append(cgroups, "-depth", "-type", "d", "-exec", "rmdir", "{}", "+")...).Run()
		if t.Failed() {
			t.Log(m.logged())
		}
	})
	for {
		if strings.TrimSpace(m.systemctl("is-active", "test.target").stdout) == "active" {
			return m
		}
		select {
		case <-ended:
			t.Skipf("systemd cannot run here: %s", m.logged())
		case <-time.After(50 * time.Millisecond):
		}
	}
}

func (m *serviceManager) systemctl(args ...string) result {
	m.t.Helper()
	return m.finish(exec.Command("systemctl", append([]string{"--user"}, args...)...), nil, "")
}

func (m *serviceManager) logged() string {
	b, _ := os.ReadFile(m.log)
	return string(b)
}

// is waits until a unit is in a state.
func (m *serviceManager) is(unit, state string) {
	m.t.Helper()
	var now string
	for end := time.Now().Add(waitLimit()); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		if now = strings.TrimSpace(m.systemctl("is-active", unit).stdout); now == state {
			return
		}
	}
	m.t.Fatalf("%s is %s, want %s", unit, now, state)
}

// unprivileged removes the user of a unit: the test's systemd cannot change it.
func unprivileged(unit string) string {
	return regexp.MustCompile(`(?m)^User=.*\n`).ReplaceAllString(unit, "")
}

// TestUnitsRunUnderSystemd runs the units of the page, and one with a socket, with a real systemd.
func TestUnitsRunUnderSystemd(t *testing.T) {
	blocks := examples(t, "deploy.md")
	scheduler := unprivileged(blocks["ini scheduler.service"])
	m := newServiceManager(t, map[string]string{
		"nightly-report.service": unprivileged(blocks["ini nightly-report.service"]),
		// The same unit on two machines. It starts again at once, and the watchdog is shorter.
		"scheduler-1.service": strings.NewReplacer("RestartSec=5", "RestartSec=0", "WatchdogSec=30", "WatchdogSec=10").Replace(scheduler),
		"scheduler-2.service": scheduler,
		"echo.socket":         "[Socket]\nListenFIFO=%h/fifo\n",
		"echo.service":        "[Service]\nEnvironment=HOLDFAST_STORE_FILE=/etc/holdfast/store\nExecStart=/usr/local/bin/holdfast run echo -- /usr/local/bin/echo\n",
	})
	must(t, os.WriteFile(filepath.Join(m.bin, "scheduler"), []byte(`#!/bin/sh
test "$WATCHDOG_PID" = $$ || exit 9
systemd-notify --ready || exit 9
while test ! -e "$HOME/hang"; do systemd-notify WATCHDOG=1; sleep 0.2; done
rm "$HOME/hang"
exec sleep 1000
`), 0o700))
	must(t, os.WriteFile(filepath.Join(m.bin, "echo"), []byte(`#!/bin/sh
test "$LISTEN_PID" = $$ && read -r line <&3 && echo "received $line"
`), 0o700))

	// The first unit starts. The second one waits, and its watchdog does not begin yet.
	m.systemctl("start", "scheduler-1").expectStatus(t, 0)
	m.systemctl("start", "--no-block", "scheduler-2").expectStatus(t, 0)
	m.is("scheduler-2", "activating")
	// The command of the first one hangs. The watchdog ends the unit with all its processes, and the second one starts.
	m.file("home/hang", "")
	m.is("scheduler-2", "active")
	contains(t, m.systemctl("show", "-p", "NRestarts", "scheduler-1").stdout, "NRestarts=1")
	m.is("scheduler-1", "activating")
	// The second one is stopped. The first one has waited since its restart.
	m.systemctl("stop", "scheduler-2").expectStatus(t, 0)
	m.is("scheduler-1", "active")
	m.systemctl("stop", "scheduler-1").expectStatus(t, 0)
	m.run("run", "--store", m.storeURL(), "--try", "scheduler", "--", "true").expectStatus(t, 0)

	// The command gets the socket of its unit.
	m.systemctl("start", "echo.socket").expectStatus(t, 0)
	fifo, err := os.OpenFile(m.path("home/fifo"), os.O_WRONLY, 0)
	must(t, err)
	_, err = fifo.WriteString("a line\n")
	must(t, err)
	must(t, fifo.Close())
	m.reads("received a line")

	// The minimum hold outlives the unit.
	m.systemctl("start", "nightly-report").expectStatus(t, 0)
	m.reads("report of nightly-report with --all")
	m.systemctl("start", "nightly-report").expectStatus(t, 0)
	if n := strings.Count(m.logged(), "report of nightly-report"); n != 1 {
		t.Errorf("the report has run %d times", n)
	}
}

// reads waits for a line in the log.
func (m *serviceManager) reads(text string) {
	m.t.Helper()
	for end := time.Now().Add(waitLimit()); !strings.Contains(m.logged(), text); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			m.t.Fatalf("no line with %q", text)
		}
	}
}
