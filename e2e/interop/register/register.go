// Package register keeps a number in a file. Several processes of a test add to it. Only the
// lock under test protects the number.
package register

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

// Register is the path of a file with a number.
type Register string

// New creates a register with the value 0. The end of the test removes it.
func New(t *testing.T) Register {
	t.Helper()
	r := Register(filepath.Join(t.TempDir(), "register"))
	if err := os.WriteFile(string(r), []byte("0"), 0o600); err != nil {
		t.Fatal(err)
	}
	return r
}

// Value reads the number.
func (r Register) Value() (int, error) {
	raw, err := os.ReadFile(string(r))
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(strings.TrimSpace(string(raw)))
}

// Add reads the number and writes the next one.
func (r Register) Add() error {
	n, err := r.Value()
	if err != nil {
		return err
	}
	return os.WriteFile(string(r), []byte(strconv.Itoa(n+1)), 0o600)
}

// Still returns an error if the number changes within a millisecond.
func (r Register) Still() error {
	before, err := r.Value()
	if err != nil {
		return err
	}
	time.Sleep(time.Millisecond)
	after, err := r.Value()
	if err == nil && after != before {
		err = fmt.Errorf("a writer beside a reader: %d, then %d", before, after)
	}
	return err
}

// Want fails the test if the register has another value.
func (r Register) Want(t *testing.T, want int) {
	t.Helper()
	if got, err := r.Value(); err != nil || got != want {
		t.Errorf("the register is %d (%v), want %d", got, err, want)
	}
}
