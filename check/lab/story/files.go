//go:build linux || darwin

package story

import (
	"errors"
	"fmt"
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
	if errors.Is(err, holdfast.ErrBusy) {
		s.step(a, text, "busy")
		return false
	}
	s.expect(err == nil, fmt.Sprintf("%s: %v", text, err))
	s.locks[a] = k
	s.step(a, text, "granted")
	s.enter(a, func() bool { return k.Context().Err() == nil })
	return true
}

var fileStories = []Story{
	{
		Name: "self-deadlock", Title: "a function that needs a lock which its caller has", Mistake: "locks-twice", Server: "files",
		Code:   "lock(); f(), which calls lock() again",
		Tale:   "A function takes the lock and calls another one, which takes the same lock. The file does not record the holder: A waits for itself, and B waits for A.",
		Lesson: "A lock must record its holder: refuse a second request of the holder, or let it join.",
		wrong: func(s *stage) {
			dir := s.files()
			s.expect(create(s, dir, A, "lock"), "A gets the lock")
			s.note(A, "calls a function")
			if !create(s, dir, A, "lock") {
				s.note(A, "waits for itself")
				create(s, dir, B, "lock")
				s.violate("A waits for its own lock, forever, and so does B.")
			}
		},
		right: func(s *stage) {
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
		},
	},
	{
		Name: "crossed-names", Title: "two names, taken in opposite order", Mistake: "opposite-order", Server: "files",
		Code:   "A: lock x, lock y; B: lock y, lock x",
		Tale:   "Both clients need two locks, for a transfer between two accounts. A takes x first, B takes y first. Now A waits for y, which B has, and B waits for x, which A has.",
		Lesson: "Take several locks in one order everywhere: DoAll and LockAll do.",
		wrong: func(s *stage) {
			dir := s.files()
			deadlock(func(s *stage, a Actor, name string) bool { return create(s, dir, a, name) })(s)
		},
		right: func(s *stage) {
			s.files()
			s.expect(tryAll(s, A, "LockAll(x, y)", "x", "y"), "A gets both")
			tryAll(s, B, "LockAll(y, x)", "y", "x")
			s.unlock(A)
			s.expect(tryAll(s, B, "LockAll(y, x)", "y", "x"), "B gets both")
			s.survive("Both begin with x, so B waits for A with nothing in its hands.")
		},
	},
}
