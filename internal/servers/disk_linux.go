package servers

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"sync"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Disk decides when the fsync and fdatasync calls of a server return. The kernel passes
// these calls to the Disk (seccomp's user notification). That needs no privileges and works
// for static binaries. It ends with this process: a server that outlives its Disk gets
// ENOSYS.
//
// A Disk that is not stalled lets each call return at once and syncs nothing. A server that
// is killed loses nothing by that, because the system's cache outlives it.
type Disk struct {
	dir      string
	listener *net.UnixListener

	mu   sync.Mutex
	gate chan struct{} // closed while the disk is not stalled
}

// diskLauncher is the first argument that makes a binary with this package a launcher. The
// launcher passes its fsync calls to the Disk whose socket is the second argument. Then it
// becomes the command of the remaining arguments.
const diskLauncher = "-holdfast-disk-launcher"

func init() {
	if len(os.Args) > 3 && os.Args[1] == diskLauncher {
		fmt.Fprintln(os.Stderr, launchOnDisk(os.Args[2], os.Args[3:]))
		os.Exit(1)
	}
}

// NewDisk returns a Disk, or an error that matches ErrNoDisk.
func NewDisk() (*Disk, error) {
	dir, err := os.MkdirTemp("", "disk-") // the path must be short: a socket's name has at most 107 bytes
	if err != nil {
		return nil, err
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(dir, "s"), Net: "unix"})
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	d := &Disk{dir: dir, listener: l, gate: make(chan struct{})}
	close(d.gate)
	go d.accept()
	probe := d.Command([]string{"/bin/true"})
	if said, err := exec.Command(probe[0], probe[1:]...).CombinedOutput(); err != nil {
		d.Close()
		return nil, fmt.Errorf("%w: %w: %s", ErrNoDisk, err, said)
	}
	return d, nil
}

// Command returns a command that runs the given command on the disk.
func (d *Disk) Command(command []string) []string {
	self, err := os.Executable()
	if err != nil {
		self = "/proc/self/exe"
	}
	return append([]string{self, diskLauncher, d.listener.Addr().String()}, command...)
}

// Stall blocks every sync until Resume.
func (d *Disk) Stall() {
	d.mu.Lock()
	defer d.mu.Unlock()
	select {
	case <-d.gate:
		d.gate = make(chan struct{})
	default: // already stalled: a new gate would leave the syncs at the old one forever
	}
}

// Resume ends a stall.
func (d *Disk) Resume() {
	d.mu.Lock()
	defer d.mu.Unlock()
	select {
	case <-d.gate:
	default:
		close(d.gate)
	}
}

// Close ends the disk. The caller must have ended the servers on it.
func (d *Disk) Close() {
	d.Resume()
	_ = d.listener.Close()
	_ = os.RemoveAll(d.dir)
}

func (d *Disk) passed() <-chan struct{} {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.gate
}

// accept receives a descriptor from each process that starts on the disk, and serves it.
func (d *Disk) accept() {
	for {
		c, err := d.listener.AcceptUnix()
		if err != nil {
			return
		}
		oob := make([]byte, unix.CmsgSpace(4))
		_, n, _, _, err := c.ReadMsgUnix(make([]byte, 1), oob)
		_ = c.Close()
		if err != nil {
			continue
		}
		messages, err := unix.ParseSocketControlMessage(oob[:n])
		if err != nil || len(messages) == 0 {
			continue
		}
		if fds, err := unix.ParseUnixRights(&messages[0]); err == nil && len(fds) == 1 {
			go d.serve(fds[0])
		}
	}
}

// notification and response are the kernel's struct seccomp_notif and seccomp_notif_resp.
type notification struct {
	id         uint64
	pid, flags uint32
	data       [64]byte
}

type response struct {
	id         uint64
	value      int64
	err, flags int32
}

// serve lets the syncs of one process return, until the process has ended.
func (d *Disk) serve(fd int) {
	var answering sync.WaitGroup
	defer func() {
		answering.Wait()
		_ = unix.Close(fd)
	}()
	for {
		p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		if _, err := unix.Poll(p, -1); err != nil && err != unix.EINTR {
			return
		}
		if p[0].Revents&unix.POLLIN == 0 {
			// POLLERR means only that a signal has interrupted the poll.
			if p[0].Revents&(unix.POLLHUP|unix.POLLNVAL) != 0 {
				return // the process has ended
			}
			continue
		}
		var n notification
		if _, _, e := syscall.Syscall(syscall.SYS_IOCTL, uintptr(fd), unix.SECCOMP_IOCTL_NOTIF_RECV, uintptr(unsafe.Pointer(&n))); e != 0 {
			continue // the process was killed during its call
		}
		gate := d.passed()
		answer := func() {
			r := response{id: n.id}
			for e := syscall.EINTR; e == syscall.EINTR; { // after an EINTR without another try, the sync would never return
				_, _, e = syscall.Syscall(syscall.SYS_IOCTL, uintptr(fd), unix.SECCOMP_IOCTL_NOTIF_SEND, uintptr(unsafe.Pointer(&r)))
			}
		}
		select {
		case <-gate:
			answer()
		default:
			answering.Go(func() {
				<-gate
				answer()
			})
		}
	}
}

// launchOnDisk becomes the command. It returns only if that fails.
func launchOnDisk(socket string, command []string) error {
	program, err := exec.LookPath(command[0])
	if err != nil {
		return err
	}
	runtime.LockOSThread() // the filter belongs to this thread, which becomes the command
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("no_new_privs: %w", err)
	}
	filter := []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: 0}, // the number of the system call
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: unix.SYS_FDATASYNC, Jt: 1},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: unix.SYS_FSYNC, Jf: 1},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_USER_NOTIF},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW},
	}
	prog := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	fd, _, e := syscall.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, unix.SECCOMP_FILTER_FLAG_NEW_LISTENER, uintptr(unsafe.Pointer(&prog)))
	if e != 0 {
		return fmt.Errorf("seccomp: %w", e)
	}
	c, err := net.DialTimeout("unix", socket, 5*time.Second)
	if err != nil {
		return err
	}
	if _, _, err := c.(*net.UnixConn).WriteMsgUnix([]byte{0}, unix.UnixRights(int(fd)), nil); err != nil {
		return err
	}
	return syscall.Exec(program, command, os.Environ())
}
