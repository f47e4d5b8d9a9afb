//go:build !linux && !darwin

package proc

import "syscall"

func signalName(syscall.Signal) string { return "" }
