package mysql

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/holdfast-go/holdfast/check/servers"
	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/driver/drivertest"
	"github.com/holdfast-go/holdfast/e2e/servertest"
	"github.com/holdfast-go/holdfast/mysqlstore"
)

// galera starts a cluster of one node.
func galera(t *testing.T) *servers.MySQL {
	t.Helper()
	const provider = "/usr/lib/galera/libgalera_smm.so"
	if _, err := os.Stat(provider); err != nil {
		servertest.Missing(t, fmt.Errorf("%w (Debian: apt-get install galera-4)", err))
	}
	group, err := servers.FreePort()
	if err != nil {
		t.Fatal(err)
	}
	receiver, err := servers.FreePort()
	if err != nil {
		t.Fatal(err)
	}
	m, err := servers.StartMariaDB(t.Context(), "--binlog-format=ROW", "--innodb-autoinc-lock-mode=2", "--innodb-flush-log-at-trx-commit=0",
		"--wsrep-on=ON", "--wsrep-provider="+provider, "--wsrep-cluster-address=gcomm://", "--wsrep-cluster-name=holdfast",
		fmt.Sprintf("--wsrep-node-address=127.0.0.1:%d", group), fmt.Sprintf("--wsrep-provider-options=base_host=127.0.0.1;base_port=%d;"+
			"gmcast.listen_addr=tcp://127.0.0.1:%d;ist.recv_addr=127.0.0.1:%d;gcache.size=8M", group, group, receiver))
	servertest.Started(t, err)
	t.Cleanup(func() { _ = m.Close() })
	return m
}

// TestGalera: the recipes with sessions refuse a node of a Galera cluster, with the reason.
// The recipe optimistic passes the whole suite there.
func TestGalera(t *testing.T) {
	m := galera(t)
	for _, r := range mariadb.Sessions {
		_, err := mysqlstore.Open(t.Context(), mariadb.URL(m.Address, mariadb.Home, "recipe="+r))
		if driver.CodeOf(err) != driver.CodeRefused || !strings.Contains(err.Error(), "Galera") {
			t.Errorf("%s: %v", r, err)
		}
	}
	open := func(t testing.TB, ns string) driver.Store {
		s, err := mysqlstore.Open(context.Background(), mariadb.URL(m.Address, mariadb.Home, "recipe=optimistic"), mysqlstore.Namespace(ns))
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	s := open(t, "").(*mysqlstore.Store)
	if err := s.Init(t.Context()); err != nil {
		t.Fatal(err)
	}
	g, err := s.Guarantees(t.Context())
	if err != nil || !strings.Contains(strings.Join(g.Notes, " "), "this server is a node of a Galera cluster") {
		t.Errorf("%v, %v", g.Notes, err)
	}
	if err := s.Close(t.Context()); err != nil {
		t.Error(err)
	}
	drivertest.Run(t, drivertest.Harness{Open: open})
}
