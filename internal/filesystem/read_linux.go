package filesystem

import (
	"fmt"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/holdfast-go/holdfast/internal/examine"
)

// readMount adds the mount options that do harm to facts. A line of mountinfo is
// "ID PARENT MAJOR:MINOR ROOT POINT OPTIONS [FIELD...] - TYPE SOURCE OPTIONS".
func readMount(dir string, f examine.Facts) error {
	var st unix.Stat_t
	if err := unix.Stat(dir, &st); err != nil {
		return err
	}
	device := fmt.Sprintf("%d:%d", unix.Major(uint64(st.Dev)), unix.Minor(uint64(st.Dev)))
	all, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil // without /proc the options are not known
	}
	for line := range strings.Lines(string(all)) {
		fields := strings.Fields(line)
		if len(fields) < 6 || fields[2] != device {
			continue
		}
		for _, option := range strings.Split(fields[len(fields)-1], ",") {
			if slices.Contains([]string{"nobarrier", "barrier=0"}, option) {
				f["barrier"] = fields[4] + " is mounted with " + option
			}
		}
	}
	return nil
}
