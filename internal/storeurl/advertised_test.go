package storeurl

import "testing"

// TestAddressOfURLIsAdvertised: a host may have several names. Another port is another server.
func TestAddressOfURLIsAdvertised(t *testing.T) {
	for _, c := range []struct {
		advertised, given string
		want              bool
	}{
		{"a.invalid:1", "a.invalid:1", true},
		{"127.0.0.1:1", "localhost:1", true},
		{"localhost:1", "127.0.0.1:1", true},
		{"127.0.0.1:2", "127.0.0.1:1", false},
		{"0.0.0.0:1", "127.0.0.1:1", false},
		{"a.invalid:1", "b.invalid:1", false},
	} {
		if got := Advertised(t.Context(), []string{"10.0.0.1:1", c.advertised}, []string{c.given}); got != c.want {
			t.Errorf("%s is advertised for %s: %t, want %t", c.advertised, c.given, got, c.want)
		}
	}
	if Advertised(t.Context(), nil, []string{"127.0.0.1:1"}) {
		t.Error("no server advertises an address, and one is found")
	}
}
