package transport

import (
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/e2e/servertest"
	"github.com/holdfast-go/holdfast/internal/servers"
)

// foreign are what errors say of a server of another kind, or of one with other protection.
var foreign = regexp.MustCompile(strings.Join([]string{
	"another kind of server", "does not look like a TLS handshake", "tls: certificate required", "HTTP response to HTTPS client", // any store
	`redis: (can't parse map|invalid) reply: "`, "INFO not received", "secure connection not available", "malformed HTTP", "PUT http://", // one store
	"a frame of [0-9]+ bytes", "invalid connection", "certificate signed by unknown authority", "does not support TLS", "refused TLS connection", "tls error: ", "received unexpected message",
}, "|"))

// TestWrongServerIsSuspected: behind the address of a URL is a server of another kind, one with TLS or without it, or one
// that accepts connections and says nothing. The error names the address and says so, in one line.
func TestWrongServerIsSuspected(t *testing.T) {
	files := servertest.NewAuthority(t, "wrong").Sign(t, "server")
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	t.Cleanup(func() { silent.Close() })
	wrong := map[string]string{"silent": silent.Addr().String()}
	for kind, settings := range map[string][]string{"redis": nil, "redis with TLS": servers.RedisTLS(files)} {
		r, err := servers.StartRedis(t.Context(), filepath.Join(t.TempDir(), "redis"), settings...)
		servertest.Started(t, err)
		t.Cleanup(r.Kill)
		wrong[kind] = r.Address()
	}
	for kind, tls := range map[string]*servers.TLS{"etcd": nil, "etcd with TLS": &files} {
		m, err := servers.StartEtcd(t.Context(), servers.EtcdConfig{Dir: t.TempDir(), NoSync: true, TLS: tls})
		servertest.Started(t, err)
		t.Cleanup(m[0].End)
		wrong[kind] = m[0].Client
	}
	n, err := servers.StartNATS(t.Context(), servers.NATSConfig{Dir: t.TempDir()})
	servertest.Started(t, err)
	t.Cleanup(n[0].End)
	wrong["nats"] = n[0].Client
	s3, err := servers.StartS3(t.Context(), t.TempDir())
	servertest.Started(t, err)
	t.Cleanup(s3.Kill)
	wrong["s3"] = s3.Address
	if !testing.Short() {
		for _, s := range stores {
			if s.name == "mysql" || s.name == "postgres" || s.name == "zookeeper" {
				wrong[s.name] = s.start(t)[0]
			}
		}
	}
	kinds := map[string]string{"rediss": "redis with TLS", "redlock": "redis", "etcds": "etcd with TLS", "zk": "zookeeper"} // the right ones
	// Parallel tests would be too few at a time: each case waits for a timeout.
	var all sync.WaitGroup
	defer all.Wait()
	for _, form := range []string{
		"redis://A", "rediss://A?ca=CA", "redlock://A?fresh=true&node=127.0.0.1:1&node=127.0.0.1:2", "etcd://A", "etcd://root:secret@A", "etcds://A?ca=CA", "zk://A/locks", "zk://A/locks?tls=true&ca=CA",
		"nats://A?bucket=locks", "nats://A?bucket=locks&tls=true&ca=CA", "s3://key:secret@locks?endpoint=http://A", "s3://key:secret@locks?endpoint=https://A&ca=CA",
		"mysql://app:secret@A/test?recipe=named", "mysql://app:secret@A/test?recipe=named&tls=true&ca=CA",
		"postgres://app:secret@A/postgres", "postgres://app:secret@A/postgres?sslmode=verify-full&sslrootcert=CA",
	} {
		scheme, _, _ := strings.Cut(form, ":")
		for kind, address := range wrong {
			if !strings.Contains(form, "tls=true") && !strings.Contains(form, "https:") && (kind == scheme || kind == kinds[scheme]) {
				continue
			}
			all.Go(func() {
				suspects := func(err error) bool {
					text := fmt.Sprint(err)
					return err != nil && !strings.Contains(text, "\n") && strings.Contains(text, address) && foreign.MatchString(text) &&
						(kind != "silent" || errors.Is(err, holdfast.ErrUnavailable) && strings.Contains(text, "accepted the connection and has not answered"))
				}
				// On a busy machine the time of a call may be over before the first connection has failed.
				suspected := func(call func() error) {
					var err error
					for range 3 {
						if err = call(); suspects(err) {
							return
						}
					}
					t.Errorf("%s at %s: %v", form, kind, err)
				}
				url := strings.NewReplacer("CA", files.CA, "A", address).Replace(form)
				all.Go(func() {
					suspected(func() error {
						l, err := holdfast.Open(t.Context(), url)
						if err == nil {
							defer l.Close(background)
							_, err = l.Inspect(t.Context(), "orders")
						}
						return err
					})
				})
				suspected(func() error { return tryLock(t, url) })
			})
		}
	}
}
