package run

import (
	"fmt"
	"hash/fnv"
	"os"
	"slices"
	"strings"

	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/redact"
)

// The environment variables of a command. EnvHeld contains a fingerprint for the lock of this run
// and for the locks of all outer runs, because the name alone does not identify a lock.
const (
	EnvName  = "HOLDFAST_NAME"
	EnvToken = "HOLDFAST_TOKEN"
	EnvSlot  = "HOLDFAST_SLOT"
	EnvHeld  = "HOLDFAST_HELD"
	// EnvGuardian is the number of the guardian's process. Only a section has it. A script ends this
	// process to release the lock.
	EnvGuardian = "HOLDFAST_GUARDIAN"
)

// fingerprint identifies a lock in EnvHeld. It contains no password.
func (o *Options) fingerprint() string {
	h := fnv.New64a()
	fmt.Fprintf(h, "%s\x00%s\x00%s", redact.Text(o.Store), o.Namespace, o.Name)
	return fmt.Sprintf("%016x", h.Sum64())
}

// Nested returns an error if an outer run holds the lock, because this run would wait for
// itself.
func (o *Options) Nested() error {
	held := os.Getenv(EnvHeld)
	if slices.Contains(strings.Split(held, ","), o.fingerprint()) || held == "" && os.Getenv(EnvName) == o.Name {
		return fmt.Errorf("%q is held by an outer holdfast run, and this one would wait for it forever", o.Name)
	}
	return nil
}

// heldBy returns the value of EnvHeld for a command under this lock.
func (o *Options) heldBy() string {
	if outer := os.Getenv(EnvHeld); outer != "" {
		return outer + "," + o.fingerprint()
	}
	return o.fingerprint()
}
