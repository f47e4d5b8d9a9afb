package proc

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// The guardian and the front are subreapers. The kernel hands orphans to the guardian, and to the
// front when the guardian has died. So every descendant of a command stays a descendant of the
// guardian or the front, in any session or group. A subreaper without children has no descendants.

// member is the state of a process when readMember read it.
type member struct {
	pid, parent, group int
	start              string // in clock ticks since the boot; a later process of the same number has another start
	name               string
	dead               bool // it has ended, and its parent has not reaped it yet
	depth              int
}

// readMember reads the state of a process from /proc.
func readMember(pid int) (member, bool) {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return member{}, false
	}
	// The name is in parentheses and may contain any byte.
	open, shut := bytes.IndexByte(b, '('), bytes.LastIndexByte(b, ')')
	if open < 0 || shut < open {
		return member{}, false
	}
	m := member{pid: pid, name: string(b[open+1 : shut])}
	fields := bytes.Fields(b[shut+1:])
	if len(fields) < 20 {
		return member{}, false
	}
	m.dead = fields[0][0] == 'Z' || fields[0][0] == 'X'
	m.parent, _ = strconv.Atoi(string(fields[1]))
	m.group, _ = strconv.Atoi(string(fields[2]))
	m.start = string(fields[19])
	return m, true
}

// seesTree reports whether /proc lists the processes of this PID namespace. That of another namespace
// gives them other numbers.
func seesTree() bool {
	self, err := os.Readlink("/proc/self")
	return err == nil && self == strconv.Itoa(syscall.Getpid())
}

// Blind reports whether this process sees the end of descendants outside the command's group, but
// cannot list them.
func Blind() bool { return !seesTree() }

// parentOf returns the parent of a process, or 0 if it is unknown.
func parentOf(pid int) int {
	m, _ := readMember(pid)
	return m.parent
}

// descendants returns the descendants of root, the youngest generation first. Without /proc it
// returns none.
func descendants(root int) []member {
	if !seesTree() {
		return nil
	}
	dir, err := os.Open("/proc")
	if err != nil {
		return nil
	}
	defer dir.Close()
	names, _ := dir.Readdirnames(-1)
	children := map[int][]member{}
	for _, name := range names {
		pid, err := strconv.Atoi(name)
		if err != nil {
			continue
		}
		if m, ok := readMember(pid); ok {
			children[m.parent] = append(children[m.parent], m)
		}
	}
	var found []member
	next := []member{{pid: root}}
	for depth := 1; len(next) > 0; depth++ {
		var born []member
		for _, parent := range next {
			for _, m := range children[parent.pid] {
				m.depth = depth
				born = append(born, m)
			}
			delete(children, parent.pid) // the processes are read one after the other, so the data may contain a cycle
		}
		found, next = append(found, born...), born
	}
	slices.Reverse(found)
	return found
}

// send sends a signal to the process that readMember read. It sends none to a later process that has the
// same number.
func (m member) send(s syscall.Signal) error {
	fd, err := unix.PidfdOpen(m.pid, 0)
	switch err {
	case nil:
		defer unix.Close(fd)
	case unix.ESRCH:
		return nil
	default: // a kernel or a sandbox without pidfds
		fd = -1
	}
	if now, ok := readMember(m.pid); !ok || now.start != m.start {
		return nil
	}
	if fd >= 0 {
		err = unix.PidfdSendSignal(fd, s, nil, 0)
	}
	if fd < 0 || err == unix.ENOSYS {
		err = syscall.Kill(m.pid, s)
	}
	if err == unix.ESRCH {
		return nil
	}
	return err
}

// signalDescendants sends a signal to the descendants of root. If inGroup is set, the members of
// the group already have the signal. Then signalDescendants only checks whether this process has
// the right to send it to them. It repeats SIGKILL until it finds no new descendants, at most for
// a few rounds. The caller calls it again later.
func signalDescendants(root int, s syscall.Signal, group int, inGroup bool) []Process {
	if s == syscall.SIGKILL && root == syscall.Getpid() {
		killChildren(nil, func() {}) // Group.watch reaps them
	}
	return signalTree(func() []member { return descendants(root) }, s, group, inGroup)
}

func signalTree(find func() []member, s syscall.Signal, group int, inGroup bool) (denied []Process) {
	type key struct {
		pid   int
		start string
	}
	seen := map[key]bool{}
	for range rounds {
		fresh := false
		for _, m := range find() {
			k := key{m.pid, m.start}
			if seen[k] {
				continue
			}
			seen[k], fresh = true, true
			sig := s
			if inGroup && m.group == group {
				sig = 0
			}
			if m.send(sig) == unix.EPERM {
				denied = append(denied, Process{m.pid, m.name})
			}
		}
		if !fresh || s != syscall.SIGKILL {
			break
		}
	}
	return denied
}

// rounds limits how often signalTree searches again for processes that started meanwhile.
const rounds = 20

func killTree(root, _ int) []Process { return signalDescendants(root, syscall.SIGKILL, 0, false) }

// killOrphans kills and reaps the descendants of this process that are not
// foreign.
func killOrphans(foreign map[int]bool, _ int) (killed int, denied []Process) {
	orphans := func() []member { return descendantsBut(foreign) }
	for pause := time.Millisecond; ; pause = min(2*pause, 20*time.Millisecond) {
		killed = max(killed, len(orphans()))
		killed = max(killed, killChildren(foreign, reap))
		denied = signalTree(orphans, syscall.SIGKILL, 0, false)
		reap()
		if len(orphans()) <= len(denied) {
			return killed - len(denied), denied
		}
		time.Sleep(pause)
	}
}

func reap() {
	for {
		if pid, err := syscall.Wait4(-1, nil, syscall.WNOHANG, nil); pid <= 0 && err != syscall.EINTR {
			return
		}
	}
}

// killChildren kills the children of this process that are not foreign, and the orphans that
// become its children, until no child is left. It returns the number of killed children, and calls
// reap to reap them. It reads the kernel's lists of children, because reading all of /proc takes
// longer. A process that starts another one and ends at once would be gone before.
func killChildren(foreign map[int]bool, reap func()) int {
	self, seen, empty := syscall.Getpid(), map[int]bool{}, 0
	for range passes {
		pids, ok := children()
		if !ok {
			break
		}
		empty++
		for pid := range pids {
			if !foreign[pid] && killChild(pid, self) {
				seen[pid], empty = true, 0
			}
		}
		reap()
		if empty == emptyPasses {
			break
		}
	}
	return len(seen)
}

// killChild kills a child of this process that is alive.
func killChild(pid, self int) bool {
	m, ok := readMember(pid)
	return ok && m.parent == self && !m.dead && m.send(syscall.SIGKILL) == nil
}

// emptyPasses is the number of successive passes without a child after which killChildren decides
// that no child exists. The kernel has one list for each thread, and a child may join a list that
// was just read.
const emptyPasses = 3

// passes limits how often killChildren reads the lists while killed processes have not ended.
const passes = 1000

// signalLeftInGroup sends a signal to the other members of a group whose leader was reaped. It
// signals each process separately, because another group may have the number of this group now.
func signalLeftInGroup(group int, s syscall.Signal) error {
	if !seesTree() {
		return signalGroup(group, s)
	}
	var failed error
	for _, m := range descendants(syscall.Getpid()) {
		if m.group == group {
			if err := m.send(s); err != nil {
				failed = err
			}
		}
	}
	return failed
}

// awaitOthers reaps children until this process has none, and so no descendants. It calls left if
// it has to wait.
func awaitOthers(_ int, left func()) {
	for flag := syscall.WNOHANG; ; {
		pid, err := syscall.Wait4(-1, nil, flag, nil)
		switch {
		case err == syscall.EINTR:
		case err != nil: // ECHILD
			return
		case pid == 0:
			left()
			flag = 0
		}
	}
}

// foreign returns the children that this process had before an exec.
func foreign() map[int]bool {
	if err := unix.Waitid(unix.P_ALL, 0, nil, unix.WEXITED|unix.WNOHANG|unix.WNOWAIT, nil); err == unix.ECHILD {
		return map[int]bool{}
	}
	pids, ok := children()
	if !ok {
		for _, m := range descendants(syscall.Getpid()) {
			pids[m.pid] = true
		}
	}
	return pids
}

// children reads the children of this process from the kernel's own lists. It returns false if the
// kernel has no such lists.
func children() (pids map[int]bool, ok bool) {
	pids = map[int]bool{}
	if !seesTree() {
		return pids, false
	}
	tasks, err := os.ReadDir("/proc/self/task")
	if err != nil {
		return pids, false
	}
	for _, t := range tasks {
		b, err := os.ReadFile(fmt.Sprintf("/proc/self/task/%s/children", t.Name()))
		if errors.Is(err, syscall.ESRCH) || errors.Is(err, os.ErrNotExist) && gone(t.Name()) {
			continue // this thread has ended
		}
		if err != nil {
			return pids, false
		}
		for _, f := range bytes.Fields(b) {
			if pid, err := strconv.Atoi(string(f)); err == nil {
				pids[pid] = true
			}
		}
	}
	return pids, true
}

// gone reports whether a thread of this process has ended.
func gone(task string) bool {
	_, err := os.Stat("/proc/self/task/" + task)
	return errors.Is(err, os.ErrNotExist)
}

// descendantsBut returns the descendants of this process, without the given children and their
// descendants.
func descendantsBut(but map[int]bool) []member {
	out := map[int]bool{}
	for pid := range but {
		out[pid] = true
		for _, m := range descendants(pid) {
			out[m.pid] = true
		}
	}
	return slices.DeleteFunc(descendants(syscall.Getpid()), func(m member) bool { return out[m.pid] })
}

// setName sets the name of this process in ps and top. Otherwise it would be "exe", the name of the
// executed file.
func setName(name string) { _ = os.WriteFile("/proc/self/comm", []byte(name), 0) }

const clockBoottime = unix.CLOCK_BOOTTIME

const descriptors = "/proc/self/fd"

// watchEnd returns a function that waits for the end of a process. It returns ESRCH for a process that has ended.
func watchEnd(pid int) (await func(), err error) {
	fd, err := unix.PidfdOpen(pid, 0)
	if err == nil {
		poll := func(timeout int) (ended bool) {
			for {
				if n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, timeout); err != unix.EINTR {
					return n > 0
				}
			}
		}
		if poll(0) {
			unix.Close(fd)
			return nil, unix.ESRCH
		}
		return func() {
			defer unix.Close(fd)
			poll(-1)
		}, nil
	}
	// a kernel or a sandbox without pidfds
	m, ok := readMember(pid)
	if !ok || m.dead {
		return nil, unix.ESRCH
	}
	return func() {
		for now, ok := m, true; ok && !now.dead && now.start == m.start; now, ok = readMember(pid) {
			time.Sleep(20 * time.Millisecond)
		}
	}, nil
}

// signalSection sends a signal to a process and its descendants, but not to this process. This
// process may be one of the descendants, if the section is a subreaper. Without /proc only the process gets the signal.
func signalSection(pid int, s syscall.Signal) ([]Process, error) {
	if !seesTree() {
		return nil, signalPID(pid, s)
	}
	find := func() []member {
		all := descendants(pid)
		if m, ok := readMember(pid); ok {
			all = append(all, m)
		}
		return slices.DeleteFunc(all, func(m member) bool { return m.pid == syscall.Getpid() })
	}
	return signalTree(find, s, 0, false), nil
}
