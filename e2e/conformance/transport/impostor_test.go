package transport

import (
	"bytes"
	"crypto/tls"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"sync"
	"testing"

	"github.com/holdfast-go/holdfast/internal/servers"
)

// impostor stands between clients and a server, shows clients its own certificate and reads what they send.
type impostor struct {
	address string
	mu      sync.Mutex
	clients int    // clients that have begun a handshake
	shown   string // the name in the certificate of the last client that has shown one
	got     []byte // what clients have sent over TLS
	fault   error  // a client has sent something else than the request for TLS before
	cut     func() // ends all connections
}

// prelude passes on what client and server send before TLS. It returns the server's side of the rest.
type prelude func(client, server net.Conn) (net.Conn, error)

func impersonate(t *testing.T, files servers.TLS, upstream string, before prelude) *impostor {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	i := &impostor{address: l.Addr().String()}
	config := &tls.Config{GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
		pair, err := tls.LoadX509KeyPair(files.Cert, files.Key) // a test may replace them
		return &pair, err
	}, NextProtos: []string{"h2"}, ClientAuth: tls.RequestClientCert}
	if before != nil { // only etcd's client requires a protocol
		config.NextProtos = nil
	}
	var all sync.WaitGroup
	var mu sync.Mutex
	open, closed := map[net.Conn]bool{}, false
	all.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			mu.Lock()
			if open[c] = true; closed {
				c.Close()
			}
			mu.Unlock()
			all.Go(func() {
				defer func() { mu.Lock(); delete(open, c); mu.Unlock(); c.Close() }()
				i.pass(c, upstream, config, before)
			})
		}
	})
	i.cut = func() {
		mu.Lock()
		defer mu.Unlock()
		for c := range open {
			c.Close()
		}
	}
	t.Cleanup(func() {
		l.Close()
		mu.Lock()
		closed = true
		mu.Unlock()
		i.cut()
		all.Wait()
	})
	return i
}

// pass passes a connection on until one side ends it.
func (i *impostor) pass(c net.Conn, upstream string, config *tls.Config, before prelude) {
	server, err := net.Dial("tcp", upstream)
	if err != nil {
		return
	}
	defer server.Close()
	rest := server
	if before != nil {
		if rest, err = before(c, server); err != nil {
			if err != io.EOF {
				i.change(func() { i.fault = err })
			}
			return
		}
	}
	i.change(func() { i.clients++ })
	secure := tls.Server(c, config)
	if secure.Handshake() != nil {
		return
	}
	if shown := secure.ConnectionState().PeerCertificates; len(shown) > 0 {
		i.change(func() { i.shown = shown[0].Subject.CommonName })
	}
	go func() {
		_, _ = io.Copy(secure, rest)
		c.Close()
	}()
	_, _ = io.Copy(io.MultiWriter(rest, i), secure)
}

func (i *impostor) Write(p []byte) (int, error) {
	i.change(func() { i.got = append(i.got, p...) })
	return len(p), nil
}

func (i *impostor) change(f func()) {
	i.mu.Lock()
	defer i.mu.Unlock()
	f()
}

// postgresPrelude accepts PostgreSQL's request for TLS. The server gets the rest without TLS.
func postgresPrelude(client, server net.Conn) (net.Conn, error) {
	request := make([]byte, 8)
	if _, err := io.ReadFull(client, request); err != nil {
		return nil, io.EOF
	}
	if string(request) != "\x00\x00\x00\x08\x04\xd2\x16\x2f" {
		return nil, fmt.Errorf("in clear text: %q", request)
	}
	_, err := client.Write([]byte("S"))
	return server, err
}

// natsPrelude passes the server's first line on, and adds that the server requires TLS. The server gets the rest
// without TLS.
func natsPrelude(client, server net.Conn) (net.Conn, error) {
	line := make([]byte, 0, 1024)
	for !bytes.HasSuffix(line, []byte("\n")) {
		line = append(line, 0)
		if _, err := server.Read(line[len(line)-1:]); err != nil {
			return nil, io.EOF
		}
	}
	_, err := client.Write(bytes.Replace(line, []byte("{"), []byte(`{"tls_required":true,`), 1))
	return server, err
}

// mysqlPrelude passes the server's greeting on, and the client's request for TLS. MySQL numbers its packets, so
// the server gets the rest over TLS.
func mysqlPrelude(client, server net.Conn) (net.Conn, error) {
	greeting, err := mysqlPacket(server)
	if err != nil {
		return nil, io.EOF
	}
	if _, err := client.Write(greeting); err != nil {
		return nil, io.EOF
	}
	request, err := mysqlPacket(client)
	if err != nil {
		return nil, io.EOF
	}
	if len(request) != 4+32 { // a login is longer
		return nil, fmt.Errorf("in clear text: %q", request)
	}
	_, err = server.Write(request)
	return tls.Client(server, &tls.Config{InsecureSkipVerify: true}), err
}

func mysqlPacket(from io.Reader) ([]byte, error) {
	packet := make([]byte, 4)
	if _, err := io.ReadFull(from, packet); err != nil {
		return nil, err
	}
	size := binary.LittleEndian.Uint32(append(packet[:3:3], 0))
	packet = append(packet, make([]byte, size)...)
	_, err := io.ReadFull(from, packet[4:])
	return packet, err
}
