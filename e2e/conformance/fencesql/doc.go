// Package fencesql tests the guards of package fence for database/sql on real
// databases: SQLite in process, MariaDB and PostgreSQL as child processes on
// free ports of the loopback interface.
//
// A server whose binary is missing is skipped, and with
// HOLDFAST_REQUIRE_SERVERS=1 fails.
package fencesql
