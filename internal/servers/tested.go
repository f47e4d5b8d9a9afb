//go:build linux || darwin

package servers

// Product is a server with its tested versions. On each of them all tests of the store have
// passed, or at least the suite and a check.
type Product struct {
	Name     string
	Versions []string // major and minor, oldest first
}

// Tested returns the servers that the tests run: those of a distribution, newer ones of
// scripts/newer-servers, and the etcd of scripts/servers. A command prints them into
// docs/guarantees.md, and e2e/conformance/versions compares them with the servers.
func Tested() []Product {
	return []Product{
		{"Redis", []string{"7.0", "8.0"}},
		{"Valkey", []string{"9.1"}},
		{"etcd", []string{"3.4", "3.5", "3.7"}},
		{"NATS", []string{"2.15"}},
		{"versitygw", []string{"1.8"}},
		{"SeaweedFS", []string{"4.48"}},
		{"ZooKeeper", []string{"3.8", "3.9"}},
		{"MySQL", []string{"8.0", "8.4", "9.7"}},
		{"MariaDB", []string{"10.11", "11.8"}},
		{"PostgreSQL", []string{"15", "18"}},
	}
}
