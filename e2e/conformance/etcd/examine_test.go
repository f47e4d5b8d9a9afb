package etcd

import (
	"context"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/e2e/conformance/requests"
	"github.com/holdfast-go/holdfast/etcdstore"
	"github.com/holdfast-go/holdfast/internal/servers"
)

// at opens a store at some members, without the proxies.
func (c *cluster) at(t *testing.T, user string, members ...*servers.Etcd) *etcdstore.Store {
	t.Helper()
	var hosts []string
	for _, m := range members {
		hosts = append(hosts, m.Client)
	}
	s, err := etcdstore.Open(context.Background(), "etcd://"+user+strings.Join(hosts, ",")+"/locks/")
	closing(t, s, err)
	_, err = s.Guarantees(t.Context())
	check(t, err)
	return s
}

// TestExamineFindsMissingMembers: no check finds anything at a good cluster. Members that the URL omits, or that do not
// answer, are found.
func TestExamineFindsMissingMembers(t *testing.T) {
	t.Parallel()
	c := start(t, servers.EtcdConfig{Members: 3})
	s := c.at(t, "", c.members...)
	requests.Found(t, s)
	requests.Found(t, c.at(t, "", c.members[0]), "endpoints")
	c.members[2].End()
	requests.Found(t, s, "silent-member")
}

// TestExamineFindsBadSettings examines single members with bad settings.
func TestExamineFindsBadSettings(t *testing.T) {
	t.Parallel()
	t.Run("alarm", func(t *testing.T) {
		t.Parallel()
		c := start(t, servers.EtcdConfig{Args: []string{"--quota-backend-bytes=1000000"}})
		s := c.at(t, "", c.members...)
		requests.Found(t, s, "members")
		fill(t, c.direct(t))
		requests.Finds(t, s, "alarm", "NOSPACE at member")
		if v, _ := requests.Finding(t, s, "space"); !strings.Contains(v.Evidence, "of 1000000") {
			t.Errorf("space: %+v", v)
		}
	})
	t.Run("compaction", func(t *testing.T) {
		t.Parallel()
		c := start(t, servers.EtcdConfig{})
		s, client := c.at(t, "", c.members...), c.direct(t)
		var all sync.WaitGroup
		for i := range 100 {
			all.Go(func() {
				for range 201 {
					if _, err := client.Put(t.Context(), fmt.Sprint(i), ""); err != nil {
						t.Error(err)
						return
					}
				}
			})
		}
		all.Wait()
		requests.Finds(t, s, "compaction", "are kept")
		_, err := client.Compact(t.Context(), 20_000)
		check(t, err)
		requests.Found(t, s, "members")
	})
	t.Run("election", func(t *testing.T) {
		t.Parallel()
		c := start(t, servers.EtcdConfig{Heartbeat: 400 * time.Millisecond})
		requests.Finds(t, c.at(t, "", c.members...), "election", "shortest lease in seconds is 6")
	})
	t.Run("token", func(t *testing.T) {
		t.Parallel()
		c := start(t, servers.EtcdConfig{Args: []string{"--auth-token=" + tokens(t, "20s")}})
		c.secure(t)
		s := c.at(t, "app:quite-secret@", c.members...)
		requests.Finds(t, s, "token", "rest of the login in seconds is")
	})
}

// tokens returns the setting of a server whose logins last for ttl.
func tokens(t *testing.T, ttl string) string {
	t.Helper()
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	check(t, err)
	public, err := x509.MarshalPKIXPublicKey(&key.PublicKey)
	check(t, err)
	dir := t.TempDir()
	for name, block := range map[string]*pem.Block{
		"private": {Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(key)}, "public": {Type: "PUBLIC KEY", Bytes: public},
	} {
		check(t, os.WriteFile(filepath.Join(dir, name), pem.EncodeToMemory(block), 0o600))
	}
	return fmt.Sprintf("jwt,pub-key=%[1]s/public,priv-key=%[1]s/private,sign-method=RS256,ttl=%[2]s", dir, ttl)
}

// TestExamineFindsVersionsWithDefects examines the etcd of the distribution.
func TestExamineFindsVersionsWithDefects(t *testing.T) {
	t.Parallel()
	for name, program := range versions(t) {
		out, err := exec.Command(program, "--version").Output()
		check(t, err)
		c := start(t, servers.EtcdConfig{Program: program})
		s := c.at(t, "", c.members...)
		if name == "current" {
			requests.Found(t, s, "members")
		} else if strings.HasPrefix(string(out), "etcd Version: 3.4.2") {
			requests.Found(t, s, "former-leader", "members", "renewal-after-end", "stale-reads")
			c.secure(t)
			requests.Finds(t, c.at(t, "app:quite-secret@", c.members...), "former-leader", "3.4.2")
		}
	}
}
