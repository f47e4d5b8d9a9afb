package nats

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/nats-io/jwt/v2"
	"github.com/nats-io/nkeys"

	"github.com/holdfast-go/holdfast/driver"
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
