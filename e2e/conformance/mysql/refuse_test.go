package mysql

import (
	"database/sql"
	"errors"
	"io"
	"net"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/e2e/conformance/sqltest"
	"github.com/holdfast-go/holdfast/internal/servers"
	"github.com/holdfast-go/holdfast/mysqlstore"
)

// TestLongNameIsNotCut: the store refuses a name that is too long for a user's column. It never
// locks a shortened name, even if the server's sql_mode makes the server shorten long values.
func TestLongNameIsNotCut(t *testing.T) {
	schema := mariadb.Create(t)
	mariadb.Exec(t, schema, "CREATE TABLE short (name VARCHAR(10) CHARACTER SET latin1 NOT NULL PRIMARY KEY) ENGINE=InnoDB")
	s := mariadb.Store(t, schema, "recipe=pessimistic&table=short&column=name&sql_mode=%27%27")
	g, _ := sqltest.Must(t, s, "0123456789", driver.Exclusive, time.Minute)
	for _, name := range []string{"0123456789-more", "日本"} {
		r, _ := sqltest.Request(name, driver.Exclusive, time.Minute)
		if got, err := s.Acquire(t.Context(), r); s.Classify(err) != driver.CodeInvalid {
			t.Errorf("%q: %+v, %v; want invalid", name, got, err)
		}
	}
	sqltest.Release(t, s, g)
	var n int
	if err := mariadb.Pool(t, schema).QueryRow("SELECT COUNT(*) FROM short").Scan(&n); err != nil || n != 1 {
		t.Errorf("%d rows, %v; want 1", n, err)
	}
}

// another starts a second server with other settings and with holdfast's tables.
func another(t *testing.T, settings ...string) *servers.MySQL {
	t.Helper()
	mariadb.Server(t) // skips, or fails
	m, err := servers.StartMySQL(t.Context(), settings...)
	check(t, err)
	t.Cleanup(func() { _ = m.Close() })
	return m
}

// refused requires that Open refuses the server, with the reason in its error.
func refused(t *testing.T, address, params, reason string) {
	t.Helper()
	s, err := mysqlstore.Open(t.Context(), mariadb.URL(address, mariadb.Home, params))
	if err == nil {
		sqltest.Close(t, s)
	}
	if driver.CodeOf(err) != driver.CodeRefused || err == nil || !strings.Contains(err.Error(), reason) {
		t.Errorf("%s: %v; want refused for %q", params, err, reason)
	}
}

// TestStatementBinlogIsRefused: a store refuses a server with binlog_format=STATEMENT, when it
// is opened and when an operator sets the format later.
func TestStatementBinlogIsRefused(t *testing.T) {
	m := another(t, "--log-bin=log", "--server-id=1", "--binlog-format=MIXED")
	for _, recipe := range mariadb.Recipes {
		s := mariadb.StoreAt(t, m.Address, mariadb.Home, "recipe="+recipe)
		check(t, s.Init(t.Context()))
		set(t, m, "SET GLOBAL binlog_format = 'STATEMENT'")
		refused(t, m.Address, "recipe="+recipe, "binlog_format")
		if recipe == "pessimistic" { // it uses READ COMMITTED, which the format excludes
			r, _ := sqltest.Request("a new name", driver.Exclusive, time.Minute)
			if _, err := s.Acquire(t.Context(), r); s.Classify(err) != driver.CodeRefused {
				t.Errorf("Acquire: %v; want refused", err)
			}
		}
		set(t, m, "SET GLOBAL binlog_format = 'MIXED'")
	}
}

// TestGroupOfSeveralPrimariesIsRefused: session recipes refuse group replication with several
// primaries.
func TestGroupOfSeveralPrimariesIsRefused(t *testing.T) {
	m, err := servers.StartMySQL(t.Context(), "--server-id=1", "--plugin-load-add=group_replication.so", "--loose-group-replication-single-primary-mode=OFF", "--loose-group-replication-enforce-update-everywhere-checks=ON")
	if err != nil {
		mariadb.Server(t) // skips, or fails
		t.Skip("the server has no group replication")
	}
	defer m.Close()
	db, err := sql.Open(mariadb.Driver, m.DSN(mariadb.Home, ""))
	check(t, err)
	defer db.Close()
	var name, value string
	if err := db.QueryRow("SHOW VARIABLES LIKE 'group_replication_single_primary_mode'").Scan(&name, &value); errors.Is(err, sql.ErrNoRows) {
		t.Skip("the server has no group replication")
	} else if err != nil {
		t.Fatal(err)
	}
	for _, recipe := range mariadb.Sessions {
		refused(t, m.Address, "recipe="+recipe, "several primaries")
	}
	s := mariadb.StoreAt(t, m.Address, mariadb.Home, "recipe=optimistic")
	g, err := s.Guarantees(t.Context())
	if err != nil || !strings.Contains(strings.Join(g.Notes, " "), "several primaries") {
		t.Errorf("%v, %v", g.Notes, err)
	}
}

// TestCommitsLostInCrashForbidDurableTokens: with some settings of the server a crash loses commits.
// The store then refuses durable tokens, when it is opened and when an operator changes the settings
// later. The recipe optimistic reports the settings in its guarantees.
func TestCommitsLostInCrashForbidDurableTokens(t *testing.T) {
	m := another(t)
	for _, value := range []string{"0", "2"} {
		for _, recipe := range mariadb.Sessions {
			params := "recipe=" + recipe + "&tokens=durable"
			set(t, m, "SET GLOBAL innodb_flush_log_at_trx_commit = 1")
			s := mariadb.StoreAt(t, m.Address, mariadb.Home, params)
			check(t, s.Init(t.Context()))
			g, _ := sqltest.Must(t, s, "durable", driver.Exclusive, time.Minute)
			sqltest.Release(t, s, g)
			set(t, m, "SET GLOBAL innodb_flush_log_at_trx_commit = "+value)
			refused(t, m.Address, params, "innodb_flush_log_at_trx_commit="+value)
			r, _ := sqltest.Request("durable", driver.Exclusive, time.Minute)
			if _, err := s.Acquire(t.Context(), r); s.Classify(err) != driver.CodeRefused {
				t.Errorf("%s, later: %v; want refused", params, err)
			}
			set(t, m, "SET GLOBAL innodb_flush_log_at_trx_commit = 1")
			g, _ = sqltest.Must(t, s, "durable", driver.Exclusive, time.Minute)
			sqltest.Release(t, s, g)
			sqltest.Close(t, s)
		}
		set(t, m, "SET GLOBAL innodb_flush_log_at_trx_commit = "+value)
		s := mariadb.StoreAt(t, m.Address, mariadb.Home, "recipe=optimistic")
		g, err := s.Guarantees(t.Context())
		if err != nil || !strings.Contains(strings.Join(g.Notes, " "), "innodb_flush_log_at_trx_commit is "+value) || !strings.Contains(strings.Join(g.EarlyEnd, " "), "innodb_flush_log_at_trx_commit") {
			t.Errorf("%v, %v", g, err)
		}
	}
}

// TestReadWriteSplitIsRefused: a store refuses a proxy that sends reads to a replica.
func TestReadWriteSplitIsRefused(t *testing.T) {
	t.Parallel()
	primary, replica := another(t, "--server-id=1"), another(t, "--server-id=2")
	for _, m := range []*servers.MySQL{primary, replica} {
		s := mariadb.StoreAt(t, m.Address, mariadb.Home, "recipe=optimistic")
		check(t, s.Init(t.Context()))
		sqltest.Close(t, s)
	}
	address := splitter(t, primary.Address, replica.Address)
	for _, recipe := range mariadb.Recipes {
		refused(t, address, "recipe="+recipe, "reads and writes")
	}
}

// splitter starts a proxy and returns its address. The proxy sends a SELECT outside of transactions
// to a replica, and all other statements to the primary. Users have no password, so one login is
// valid at both servers.
func splitter(t *testing.T, primary, replica string) (address string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	check(t, err)
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go split(c, primary, replica)
		}
	}()
	return l.Addr().String()
}

func packet(r io.Reader) ([]byte, error) {
	head := make([]byte, 4)
	if _, err := io.ReadFull(r, head); err != nil {
		return nil, err
	}
	body := make([]byte, int(head[0])|int(head[1])<<8|int(head[2])<<16)
	_, err := io.ReadFull(r, body)
	return append(head, body...), err
}

var plainSelect = regexp.MustCompile(`^\s*SELECT[^;]*$`)

func split(client net.Conn, primary, replica string) {
	defer client.Close()
	var both []net.Conn
	for _, address := range []string{primary, replica} {
		c, err := net.Dial("tcp", address)
		if err != nil {
			return
		}
		defer c.Close()
		both = append(both, c)
	}
	// The client gets the primary's greeting, and both servers get its login. The proxy drops
	// the replica's greeting and its answer.
	greeting, err := packet(both[0])
	if err != nil {
		return
	}
	if _, err := packet(both[1]); err != nil {
		return
	}
	if _, err := client.Write(greeting); err != nil {
		return
	}
	login, err := packet(client)
	if err != nil {
		return
	}
	for _, c := range both {
		if _, err := c.Write(login); err != nil {
			return
		}
	}
	if _, err := packet(both[1]); err != nil {
		return
	}
	for _, c := range both {
		go func() {
			_, _ = io.Copy(client, c)
			_ = client.Close()
		}()
	}
	open := false
	for {
		p, err := packet(client)
		if err != nil {
			return
		}
		statement := ""
		if len(p) > 5 && p[4] == 3 { // COM_QUERY
			statement = string(p[5:])
		}
		switch {
		case strings.HasPrefix(statement, "START TRANSACTION"):
			open = true
		case strings.HasPrefix(statement, "ROLLBACK"), strings.HasPrefix(statement, "COMMIT"):
			open = false
		}
		to := both[0]
		if !open && plainSelect.MatchString(statement) {
			to = both[1]
		}
		if _, err := to.Write(p); err != nil {
			return
		}
	}
}
