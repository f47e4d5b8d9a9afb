//go:build linux || darwin

package proc

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
)

// StepArg, as the first argument, makes this program a step between fork and exec: see Step.
const StepArg = "exec-command"

// foregroundTask is the task of Step that is no variable.
const foregroundTask = "foreground"

// Step does what only the command's own process can do before the command begins, and then executes the command.
// The first word lists the tasks: variables that get the number of this process, and foregroundTask. Go has no
// hook between fork and exec, so this program runs as a step between them.
func Step(args []string) int {
	if len(args) < 3 {
		return 1
	}
	for task := range strings.SplitSeq(args[0], ",") {
		if task == foregroundTask {
			takeForeground()
		} else {
			os.Setenv(task, strconv.Itoa(os.Getpid()))
		}
	}
	e := notRunnable(args[2], syscall.Exec(args[1], args[2:], os.Environ()))
	fmt.Fprintf(os.Stderr, "holdfast: %v\n", e)
	return e.Status
}

// takeForeground makes this process's group the terminal's foreground group. This process is the leader of its
// group. If the parent set the foreground group after the start, it would race with the command's first use of
// the terminal. SysProcAttr.Foreground works only while SIGTTOU is ignored, and the command would inherit that.
func takeForeground() {
	IgnoreOutputStops()
	_ = setForegroundGroup(0, syscall.Getpid())
	heedOutputStops() // to the exec: the command inherits nothing of IgnoreOutputStops
}
