package storeurl_test

import (
	"strings"
	"testing"

	"github.com/holdfast-go/holdfast/internal/storeurl"
)

// TestExposedPasswordIsReported: a password may go to this machine, or to another one by TLS to a verified server.
// If TLS is required, only a Unix socket needs none.
func TestExposedPasswordIsReported(t *testing.T) {
	type check struct {
		hosts              string
		verified, password bool
	}
	for c, want := range map[check]struct{ warns, refused bool }{
		{"db.example:5432", false, true}:             {true, true},
		{"db.example", false, false}:                 {false, true},
		{"db.example:5432", true, true}:              {false, false},
		{"192.0.2.1:1", false, true}:                 {true, true},
		{"[2001:db8::1]:1", false, true}:             {true, true},
		{"[::ffff:192.0.2.1]:1", false, true}:        {true, true},
		{"0.0.0.0:1", false, true}:                   {true, true},
		{"127.0.0.1.db.example:1", false, true}:      {true, true},
		{"localhost.example:1", false, true}:         {true, true},
		{"127.0.0.1:1,db.example:1", false, true}:    {true, true},
		{"/run/x,db.example:1", false, true}:         {true, true},
		{"127.0.0.1:1", false, true}:                 {false, true},
		{"127.9.9.9", false, true}:                   {false, true},
		{"[::1]:1", false, true}:                     {false, true},
		{"::1", false, true}:                         {false, true},
		{"[::1]", false, true}:                       {false, true},
		{"[::ffff:127.0.0.1]:1", false, true}:        {false, true},
		{"LocalHost.:1,db.localhost:1", false, true}: {false, true},
		{"/run/postgresql,@abstract", false, true}:   {false, false},
	} {
		p := storeurl.Protection{Hosts: strings.Split(c.hosts, ","), Verified: c.verified, Password: c.password, How: "give how"}
		warning, err := p.Check(false)
		if (warning != "") != want.warns || err != nil || want.warns && !strings.HasSuffix(warning, "is not protected by TLS to a verified server: give how") {
			t.Errorf("%+v: %q, %v", c, warning, err)
		}
		if warning, err := p.Check(true); (err != nil) != want.refused || warning != "" {
			t.Errorf("%+v with require_tls=true: %q, %v", c, warning, err)
		}
	}
}
