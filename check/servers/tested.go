//go:build linux || darwin

package servers

// Product is a server with the versions on which all tests of its store, or the suite and a
// check, have passed.
type Product struct {
	Name     string
	Versions []string // major and minor, oldest first
}

// Tested returns the servers that the tests run: those of a distribution, newer ones of
// scripts/newer-servers, and the etcd of scripts/servers. docs/guarantees.md is printed from it,
// and e2e/conformance/versions compares it with the servers.
func Tested() []Product {
	return []Product{
		{"Redis", []string{"7.0", "8.0"}},
		{"Valkey", []string{"9.1"}},
		{"etcd", []string{"3.4", "3.5", "3.7"}},
		{"ZooKeeper", []string{"3.8", "3.9"}},
		{"MySQL", []string{"8.0", "8.4", "9.7"}},
		{"MariaDB", []string{"10.11", "11.8"}},
		{"PostgreSQL", []string{"15", "18"}},
	}
}
