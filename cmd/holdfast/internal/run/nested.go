package run

import (
	"fmt"
	"hash/fnv"
	"os"
	"regexp"
	"slices"
	"strings"

	"github.com/holdfast-go/holdfast/internal/printable"
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
	fmt.Fprintf(h, "%s\x00%s\x00%s", printable.Redact(o.Store), o.Namespace, o.Name)
	return fmt.Sprintf("%016x", h.Sum64())
}

// Nested returns an error if an outer run holds the lock, because this run would wait for
// itself.
func (o *Options) Nested() error {
	held := heldByOuter()
	if slices.Contains(held, o.fingerprint()) || len(held) == 0 && os.Getenv(EnvName) == o.Name {
		return fmt.Errorf("%q is held by an outer holdfast run, and this one would wait for it forever", o.Name)
	}
	return nil
}

// heldBy returns the value of EnvHeld for a command under this lock.
func (o *Options) heldBy() string {
	return strings.Join(append(heldByOuter(), o.fingerprint()), ",")
}

// heldByOuter returns the fingerprints in EnvHeld. It leaves out everything else, because another
// program may have set the variable.
func heldByOuter() []string {
	return regexp.MustCompile(`\b[0-9a-f]{16}\b`).FindAllString(os.Getenv(EnvHeld), -1)
}
