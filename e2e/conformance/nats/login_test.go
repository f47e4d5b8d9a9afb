package nats

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/jwt/v2"
	"github.com/nats-io/nkeys"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/e2e/conformance/requests"
	"github.com/holdfast-go/holdfast/e2e/servertest"
	"github.com/holdfast-go/holdfast/internal/servers"
	"github.com/holdfast-go/holdfast/natsstore"
)

// key returns a new key pair and its public half.
func key(t *testing.T, create func() (nkeys.KeyPair, error)) (nkeys.KeyPair, string) {
	t.Helper()
	pair, err := create()
	check(t, err)
	public, err := pair.PublicKey()
	check(t, err)
	return pair, public
}

func encoded(t *testing.T, c jwt.Claims, by nkeys.KeyPair) string {
	t.Helper()
	token, err := c.Encode(by)
	check(t, err)
	return token
}

// credentials writes the file of a user of an account.
func credentials(t *testing.T, account nkeys.KeyPair) string {
	t.Helper()
	user, public := key(t, nkeys.CreateUser)
	seed, err := user.Seed()
	check(t, err)
	text, err := jwt.FormatUserConfig(encoded(t, jwt.NewUserClaims(public), account), seed)
	check(t, err)
	file := filepath.Join(t.TempDir(), "user.creds")
	check(t, os.WriteFile(file, text, 0o600))
	return file
}

// TestCredentialsOverTLSLogIn: a server of an operator verifies the certificates of its clients. A user of the account
// locks there with a file of credentials. Open refuses a user whom another account has signed. A client without a
// certificate gets no connection.
func TestCredentialsOverTLSLogIn(t *testing.T) {
	operator, operatorID := key(t, nkeys.CreateOperator)
	account, accountID := key(t, nkeys.CreateAccount)
	claims := jwt.NewAccountClaims(accountID)
	claims.Limits.JetStreamLimits = jwt.JetStreamLimits{DiskStorage: jwt.NoLimit, Streams: jwt.NoLimit, Consumer: jwt.NoLimit}
	_, systemID := key(t, nkeys.CreateAccount)
	operatorClaims := jwt.NewOperatorClaims(operatorID)
	operatorClaims.SystemAccount = systemID
	ca := servertest.NewAuthority(t, "ca")
	server, own := ca.Sign(t, "server"), ca.Sign(t, "client")
	c := startEmpty(t, servers.NATSConfig{Settings: fmt.Sprintf(`
operator: %s
resolver: MEMORY
resolver_preload: { %s: %s, %s: %s }
tls { cert_file: %q, key_file: %q, ca_file: %q, verify: true }`,
		encoded(t, operatorClaims, operator), accountID, encoded(t, claims, operator),
		systemID, encoded(t, jwt.NewAccountClaims(systemID), operator), server.Cert, server.Key, server.CA)})
	secure := c.url(c.addresses()) + "&tls=true&ca=" + ca.File
	certified := secure + "&cert=" + own.Cert + "&key=" + own.Key

	s := openAt(t, certified+"&creds="+credentials(t, account), "")
	check(t, s.Init(t.Context()))
	if _, err := s.Put(t.Context(), "key", []byte("value"), ""); err != nil {
		t.Error(err)
	}
	other, _ := key(t, nkeys.CreateAccount)
	if _, err := natsstore.Open(t.Context(), certified+"&creds="+credentials(t, other), ""); driver.CodeOf(err) != driver.CodeRefused {
		t.Errorf("Open as a user of another account: %v", err)
	}
	bare := openAt(t, secure+"&creds="+credentials(t, account), "")
	if _, err := bare.Put(t.Context(), "key", []byte("value"), ""); driver.CodeOf(err) != driver.CodeUnavailable {
		t.Errorf("Put without a certificate: %v", err)
	}
}

// TestRefusedLoginsAreFewBeforeFirstConnection: a store is opened with a wrong password while its server is away. Once the
// server is back, the store does not log in again and again while a request waits for the connection.
func TestRefusedLoginsAreFewBeforeFirstConnection(t *testing.T) {
	c := startEmpty(t, servers.NATSConfig{Settings: "authorization { user: app, password: secret }"})
	c.proxies[0].Cut()
	s := openAt(t, strings.Replace(c.url(c.addresses()), "://", "://app:another@", 1), "")
	check(t, c.proxies[0].Heal())
	requests.Eventually(t, "the server refuses the login", func() bool {
		_, err := s.Put(t.Context(), "key", []byte("value"), "")
		return driver.CodeOf(err) == driver.CodeRefused
	})
	if n := c.proxies[0].Accepted(); n > 3 {
		t.Errorf("%d logins", n)
	}
}

// TestRenewedPasswordIsUsedAtOnce: the server gets another password, which ends the user's connections. The store's file
// has the password already. The next login does not wait as one after a refused login does, so the lock stays.
func TestRenewedPasswordIsUsedAtOnce(t *testing.T) {
	const old, next = "old-secret", "next-secret"
	c := startEmpty(t, servers.NATSConfig{Settings: "authorization { user: app, password: " + old + " }"})
	file := filepath.Join(t.TempDir(), "password")
	check(t, os.WriteFile(file, []byte(old), 0o600))
	withFile := strings.Replace(c.url(c.addresses()), "://", "://app@", 1) + "&password_file=" + file
	check(t, openAt(t, withFile, "").Init(t.Context()))
	l, err := holdfast.Open(t.Context(), withFile)
	check(t, err)
	t.Cleanup(func() { _ = l.Close(context.Background()) })
	held, err := l.Lock(t.Context(), "held", holdfast.TTL(6*time.Second))
	check(t, err)

	check(t, os.WriteFile(file, []byte(next), 0o600))
	settings := filepath.Join(c.members[0].Data(), "..", "nats.conf")
	text, err := os.ReadFile(settings)
	check(t, err)
	check(t, os.WriteFile(settings, []byte(strings.Replace(string(text), old, next, 1)), 0o600))
	check(t, syscall.Kill(c.members[0].PID(), syscall.SIGHUP))
	requests.Eventually(t, "the server has the new password", func() bool {
		s, err := natsstore.Open(t.Context(), strings.Replace(c.url(c.addresses()), "://", "://app:"+old+"@", 1), "")
		if err == nil {
			check(t, s.Close(t.Context()))
		}
		return driver.CodeOf(err) == driver.CodeRefused
	})
	requests.Eventually(t, "a lock is granted", func() bool {
		k, err := l.TryLock(t.Context(), "free")
		return err == nil && k.Unlock() == nil
	})
	if err := held.Context().Err(); err != nil {
		t.Errorf("the lock is lost: %v", context.Cause(held.Context()))
	}
}
