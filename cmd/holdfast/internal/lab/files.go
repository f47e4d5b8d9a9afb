//go:build linux || darwin

package lab

import (
	"errors"
	"os"
	"path/filepath"
	"time"

	"github.com/holdfast-go/holdfast"
)

// files creates a directory and makes it the store of the clients' Lockers. It returns the
// directory.
func (s *stage) files() string {
	dir := s.set.scratch(s)
	s.url = func(Actor) string { return "file://" + filepath.Join(dir, "holdfast") }
	return dir
}

// create locks by creating a file that must not exist.
func create(s *stage, dir string, a Actor, name string) bool {
	f, err := os.OpenFile(filepath.Join(dir, name), os.O_CREATE|os.O_EXCL, 0o600)
	if errors.Is(err, os.ErrExist) {
		s.step(a, "create file "+name, "it exists")
		return false
	}
	s.must(err)
	s.must(f.Close())
	s.step(a, "create file "+name, "created")
	return true
}

// tryAll acquires several names with holdfast.
func tryAll(s *stage, a Actor, text string, names ...string) bool {
	k, err := s.locker(a).LockAll(s.ctx, names, holdfast.TTL(long), holdfast.Wait(500*time.Millisecond))
	return s.took(a, text, k, err)
}

// locksTwice plays a client that locks again what it has locked.
func locksTwice(s *stage) {
	dir := s.files()
	s.expect(create(s, dir, A, "lock"), "A gets the lock")
	s.note(A, "calls a function")
	if !create(s, dir, A, "lock") {
		s.note(A, "waits for itself")
		create(s, dir, B, "lock")
		s.violate("A waits for its own lock, forever, and so does B.")
	}
}

// locksTwiceRight plays the same story with holdfast.
func locksTwiceRight(s *stage) {
	s.files()
	s.expect(s.tryLock(A, long), "A gets the lock")
	s.note(A, "calls a function")
	k := s.locks[A]
	_, err := s.locker(A).TryLock(k.Context(), lockName)
	s.expect(errors.Is(err, holdfast.ErrSelfDeadlock), "the second lock is refused")
	s.step(A, `TryLock("lock")`, "ErrSelfDeadlock")
	again, err := s.locker(A).TryLock(k.Context(), lockName, holdfast.Reentrant())
	s.must(err)
	s.step(A, "with Reentrant()", "joins")
	s.must(again.Unlock())
	s.unlock(A)
	s.expect(s.tryLock(B, long), "B gets the lock")
	s.survive("A gets an error at once, or joins its own lock. B comes after A.")
}

// crossed plays two clients that take two names in opposite order.
func crossed(s *stage) {
	dir := s.files()
	s.expect(create(s, dir, A, "x"), "A gets x")
	s.expect(create(s, dir, B, "y"), "B gets y")
	if !create(s, dir, A, "y") && !create(s, dir, B, "x") {
		s.note(A, "waits for B to release y")
		s.note(B, "waits for A to release x")
		s.violate("Each waits for the other, forever.")
	}
}

// crossedRight plays the same story with holdfast.
func crossedRight(s *stage) {
	s.files()
	s.expect(tryAll(s, A, "LockAll(x, y)", "x", "y"), "A gets both")
	tryAll(s, B, "LockAll(y, x)", "y", "x")
	s.unlock(A)
	s.expect(tryAll(s, B, "LockAll(y, x)", "y", "x"), "B gets both")
	s.survive("Both begin with x, so B waits for A with nothing in its hands.")
}
