// Package fencesql tests the guards of package fence for database/sql on real databases.
// SQLite runs in process. MariaDB and PostgreSQL run as child processes on free ports of
// the loopback interface.
//
// If the binary of a server is missing, its tests are skipped. With
// HOLDFAST_REQUIRE_SERVERS=1 they fail.
package fencesql
