package redis

import (
	"context"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	goredis "github.com/redis/go-redis/v9"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/e2e/servertest"
	"github.com/holdfast-go/holdfast/internal/servers"
)

// TestRefusedLoginsAreFew: the servers refuse the password of a process with a holder, a waiter and a candidate.
func TestRefusedLoginsAreFew(t *testing.T) {
	t.Run("redis sentinel", func(t *testing.T) {
		t.Parallel()
		s, url := sentinels(t)
		refusedLogins(t, s.All(), url)
	})
	t.Run("redis cluster", func(t *testing.T) {
		t.Parallel()
		c := ownCluster(t, false)
		refusedLogins(t, c.Nodes, "redis+cluster://"+c.Nodes[0].Address())
	})
}

// TestUserWithoutPasswordLogsIn: only the user of the URL, who has no password, may log in.
func TestUserWithoutPasswordLogsIn(t *testing.T) {
	r := start(t)
	do(t, r, "ACL", "SETUSER", "app", "on", "nopass", "~holdfast:*", "&holdfast:*", "+@all")
	do(t, r, "ACL", "SETUSER", "default", "off")
	s := open(t, "redis://app@"+r.Address())
	release(t, s, must(t, s, request("x", driver.Exclusive, long)))
	credentialsRefused(t, kept(t, opening("redis://"+r.Address())))
}

// TestErrorOfLoginHidesPassword: a server does not have the commands of a login, and repeats their arguments.
func TestErrorOfLoginHidesPassword(t *testing.T) {
	r := start(t, "--rename-command", "AUTH", "", "--rename-command", "HELLO", "")
	credentialsRefused(t, kept(t, opening("redis://app:app-secret@"+r.Address())))
	credentialsRefused(t, over(t, goredis.NewClient(&goredis.Options{Addr: r.Address(), Username: "app", Password: "app-secret"})))
}

// refusedLogins counts the logins that each server has refused.
func refusedLogins(t *testing.T, all []*servers.Redis, address string) {
	restrict(t, all, "cluster")
	must(t, open(t, address), request("busy", driver.Exclusive, long))
	file := filepath.Join(t.TempDir(), "password")
	write := func(text string) { check(t, os.WriteFile(file, []byte(text), 0o600)) }
	write("app-secret")
	u, err := url.Parse(address)
	check(t, err)
	u.User = url.User("app")
	q := u.Query()
	q.Set("password_file", file)
	u.RawQuery = q.Encode()
	l, err := holdfast.Open(t.Context(), u.String())
	check(t, err)
	defer l.Close(context.Background())
	_, row, _ := strings.Cut(t.Name(), "/")
	servertest.RefusedLogins{
		Row: strings.ReplaceAll(row, "_", " "), Client: l, Busy: "busy",
		Refuse: func() {
			write("another")
			for _, r := range all {
				do(t, r, "CLIENT", "KILL", "USER", "app")
			}
		},
		Accept: func() { write("app-secret") },
		Count: func() (most int) {
			for _, r := range all {
				n := 0
				entries, _ := do(t, r, "ACL", "LOG").([]any)
				for _, e := range entries {
					if f := fieldsOf(e); f["reason"] == "auth" {
						count, err := strconv.Atoi(f["count"])
						check(t, err)
						n += count
					}
				}
				most = max(most, n)
			}
			return most
		},
	}.Test(t)
}

// fieldsOf returns the fields of an answer that lists names and values.
func fieldsOf(answer any) map[string]string {
	words, _ := answer.([]any)
	fields := map[string]string{}
	for i := 0; i+1 < len(words); i += 2 {
		fields[fmt.Sprint(words[i])] = fmt.Sprint(words[i+1])
	}
	return fields
}
