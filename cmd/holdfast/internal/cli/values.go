package cli

import (
	"cmp"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"
)

// duration is a flag's value with its limits.
type duration struct {
	d           time.Duration
	given       bool
	least, most time.Duration
	allowed     string // what to give, if not a duration from least to most
}

func (v *duration) Set(s string) error {
	allowed := cmp.Or(v.allowed, fmt.Sprintf("a duration from %s to %s", short(v.least), short(v.most)))
	d, err := time.ParseDuration(s)
	switch {
	case err != nil:
		return fmt.Errorf("not a duration such as 30s or 1h30m: give %s", allowed)
	case d < v.least || d > v.most:
		return fmt.Errorf("give %s", allowed)
	}
	v.d, v.given = d, true
	return nil
}

// ifGiven returns the value, or nil without the flag.
func (v *duration) ifGiven() *time.Duration {
	if !v.given {
		return nil
	}
	return &v.d
}

func (v *duration) Type() string { return "duration" }

func (v *duration) String() string {
	if v.d == 0 {
		return ""
	}
	return short(v.d)
}

// short formats a duration without trailing zero units: the standard library formats 24h as
// 24h0m0s.
func short(d time.Duration) string {
	s := d.String()
	if strings.HasSuffix(s, "m0s") {
		s = s[:len(s)-2]
	}
	if strings.HasSuffix(s, "h0m") {
		s = s[:len(s)-2]
	}
	return s
}

// number is a flag's value with its limits.
type number struct {
	n           int
	given       bool
	least, most int
}

func (v *number) Set(s string) error {
	n, err := strconv.Atoi(s)
	if err != nil || n < v.least || n > v.most {
		return fmt.Errorf("give a whole number from %d to %d", v.least, v.most)
	}
	v.n, v.given = n, true
	return nil
}

func (v *number) Type() string { return "number" }

func (v *number) String() string {
	if v.n == 0 {
		return ""
	}
	return strconv.Itoa(v.n)
}

// process is a flag's value: the number of a process, or "parent" for the process that has called holdfast.
type process struct {
	number
	parent bool
}

func (v *process) Set(s string) error {
	if v.parent = s == "parent"; v.parent {
		s = strconv.Itoa(os.Getppid())
	}
	if err := v.number.Set(s); err != nil {
		return fmt.Errorf("%w, or parent", err)
	}
	return nil
}

// text is a flag's value with a check of its own.
type text struct {
	s     string
	given bool
	check func(string) error
}

func (v *text) Set(s string) error {
	if v.check != nil {
		if err := v.check(s); err != nil {
			return err
		}
	}
	v.s, v.given = s, true
	return nil
}

func (v *text) Type() string   { return "text" }
func (v *text) String() string { return v.s }
