package servers

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/holdfast-go/holdfast/internal/must"
)

// TestStalledDiskHoldsSync requires that a sync waits while the disk is stalled, and
// returns otherwise. A process that waits for a stalled disk can be killed.
func TestStalledDiskHoldsSync(t *testing.T) {
	d, err := NewDisk()
	if err != nil {
		t.Skip(err)
	}
	t.Cleanup(d.Close)
	file := filepath.Join(t.TempDir(), "f")
	sync := func() (*exec.Cmd, <-chan error) {
		t.Helper()
		command := d.Command([]string{"dd", "if=/dev/zero", "of=" + file, "bs=1", "count=1", "conv=fsync", "status=none"})
		cmd := exec.Command(command[0], command[1:]...)
		must.Succeed(t, cmd.Start())
		done := make(chan error, 1)
		go func() { done <- cmd.Wait() }()
		return cmd, done
	}
	ends := func(done <-chan error) error {
		t.Helper()
		select {
		case err := <-done:
			return err
		case <-time.After(30 * time.Second):
			t.Fatal("it does not end")
			panic("unreachable")
		}
	}
	_, first := sync()
	must.Succeed(t, ends(first))
	d.Stall()
	waits, second := sync()
	_, third := sync()
	select {
	case err := <-second:
		t.Fatalf("a sync returned from a stalled disk: %v", err)
	case err := <-third:
		t.Fatalf("a sync returned from a stalled disk: %v", err)
	case <-time.After(300 * time.Millisecond):
	}
	must.Succeed(t, waits.Process.Kill())
	if err := ends(second); err == nil {
		t.Error("a process that was killed ended well")
	}
	d.Resume()
	must.Report(t, ends(third))
}

// syncing is the environment variable that makes this binary a process that syncs many
// files at a time. Its value is the directory of the files.
const syncing = "HOLDFAST_TEST_SYNCING"

func init() {
	if dir := os.Getenv(syncing); dir != "" {
		syncFiles(dir)
		os.Exit(0)
	}
}

func syncFiles(dir string) {
	var all sync.WaitGroup
	for i := range 16 {
		all.Go(func() {
			f, err := os.Create(filepath.Join(dir, strconv.Itoa(i)))
			for range 20_000 {
				if err == nil {
					err = unix.Fsync(int(f.Fd()))
				}
			}
			if err != nil {
				fmt.Fprintln(os.Stderr, err)
				os.Exit(1)
			}
		})
	}
	all.Wait()
}

// TestSignalsKeepDiskGoing requires that every sync returns although signals interrupt the
// disk's system calls. Such a signal reports, for example, that a child process was
// stopped.
func TestSignalsKeepDiskGoing(t *testing.T) {
	d, err := NewDisk()
	if err != nil {
		t.Skip(err)
	}
	t.Cleanup(d.Close)
	command := d.Command([]string{os.Args[0]})
	cmd := exec.CommandContext(t.Context(), command[0], command[1:]...)
	cmd.Env = append(os.Environ(), syncing+"="+t.TempDir())
	cmd.Stderr = os.Stderr
	must.Succeed(t, cmd.Start())
	done := make(chan error, 1)
	go func() { done <- cmd.Wait() }()
	patience := time.After(2 * time.Minute)
	for {
		select {
		case err := <-done:
			must.Report(t, err)
			return
		case <-patience:
			_ = cmd.Process.Kill()
			t.Fatal("syncs do not return")
		case <-time.After(50 * time.Microsecond):
		}
		threads, _ := os.ReadDir("/proc/self/task")
		for _, thread := range threads {
			n, _ := strconv.Atoi(thread.Name())
			_ = unix.Tgkill(os.Getpid(), n, unix.SIGURG)
		}
	}
}

// TestResumeEndsRepeatedStall requires that Resume also lets the syncs return that began between two
// calls of Stall.
func TestResumeEndsRepeatedStall(t *testing.T) {
	d, err := NewDisk()
	if err != nil {
		t.Skip(err)
	}
	t.Cleanup(d.Close)
	d.Stall()
	command := d.Command([]string{"dd", "if=/dev/zero", "of=" + filepath.Join(t.TempDir(), "f"), "bs=1", "count=1", "conv=fsync", "status=none"})
	cmd := exec.Command(command[0], command[1:]...)
	must.Succeed(t, cmd.Start())
	done := make(chan error, 1)
	go func() { done <- cmd.Wait() }()
	select {
	case err := <-done:
		t.Fatalf("a sync returned from a stalled disk: %v", err)
	case <-time.After(300 * time.Millisecond):
	}
	d.Stall()
	d.Resume()
	select {
	case err := <-done:
		must.Succeed(t, err)
	case <-time.After(5 * time.Second):
		_ = cmd.Process.Kill()
		t.Fatal("the sync still waits after Resume")
	}
}
