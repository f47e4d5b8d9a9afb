package servers

import (
	"bytes"
	"os"
	"path/filepath"
	"strconv"
	"time"
)

// awaitStopped waits, for 2 s at most, until every thread of a process group has stopped after
// SIGSTOP. A running thread continues for a moment, and may answer a request that was sent after
// the signal.
func awaitStopped(group int) {
	for end := time.Now().Add(2 * time.Second); time.Now().Before(end); time.Sleep(time.Millisecond) {
		if stopped(group) {
			return
		}
	}
}

// stopped reports whether no thread of a process group runs.
func stopped(group int) bool {
	processes, _ := filepath.Glob("/proc/[0-9]*")
	for _, p := range processes {
		if _, in := stateOf(p, group); !in {
			continue
		}
		threads, _ := filepath.Glob(p + "/task/*")
		for _, t := range threads {
			if state, in := stateOf(t, group); in && state != 'T' && state != 'Z' && state != 'X' {
				return false
			}
		}
	}
	return true
}

// stateOf returns the state of a thread, and reports whether the thread is in the group.
func stateOf(dir string, group int) (state byte, in bool) {
	text, err := os.ReadFile(filepath.Join(dir, "stat"))
	if err != nil {
		return 0, false // the thread has ended
	}
	// The fields after the name are the state, the parent and the process group. The name is in
	// parentheses, and may itself contain spaces and parentheses.
	fields := bytes.Fields(text[bytes.LastIndexByte(text, ')')+1:])
	if len(fields) < 3 || string(fields[2]) != strconv.Itoa(group) {
		return 0, false
	}
	return fields[0][0], true
}
