package cli

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"os"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/spf13/cobra"
	otelprometheus "go.opentelemetry.io/otel/exporters/prometheus"
	"go.opentelemetry.io/otel/sdk/metric"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/console"
	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/exit"
	page "github.com/holdfast-go/holdfast/console"
	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/storeurl"
	"github.com/holdfast-go/holdfast/otelhooks"
)

const serveLong = `Serve shows the locks of one or several stores on a page, and lets people break them and
programs in any language hold them over HTTP. docs/serve.md describes both.

It listens on this machine only, unless --listen names another address. Without --clients,
every user of the machine can see, hold and break locks. Another address needs --clients, or
client certificates with --tls-client-ca. With --clients, every request needs a token or a
certificate of that file:

  name  sha256:HASH-OF-THE-TOKEN  see=PREFIX lock=PREFIX break=PREFIX
  name  cert:NAME-IN-CERTIFICATE  see=

Standard error gets a line for each break, each refused request and each lost lock. When
serve ends, the locks that clients hold through it end, too.

` + inspectEnvironment + `

Exit status:
  64   bad usage, or the address cannot be used
  69   the store cannot be reached or does not answer
  78   the store refused, or does not support the request
  128+n  signal n ended it`

type serveFlags struct {
	stores, files            []string
	namespace                text
	listen                   string
	clients, cert, key, auth string
	streams                  number

	// What security and resolve have found.
	client func(*http.Request) (page.Client, bool)
	secure *tls.Config
	hosts  []string
	urls   []string
}

func newServe(p *console.Printer) *cobra.Command {
	f := &serveFlags{streams: number{n: page.DefaultStreams, least: 1, most: 1_000_000}}
	cmd := &cobra.Command{
		Use:   "serve [flags]",
		Short: "Show locks on a page, and lend them over HTTP",
		Long:  serveLong,
		Example: `  holdfast serve --store redis://localhost:6379
  holdfast serve --store-file redis --store-file etcd
  holdfast serve --listen :7345 --clients clients --tls-cert cert.pem --tls-key key.pem`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 0 {
				return fmt.Errorf("%d arguments: give the stores with --store", len(args))
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := f.security(); err != nil {
				return err
			}
			if err := f.resolve(p); err != nil {
				return err
			}
			ctx, stop := interruptible(cmd.Context())
			defer stop()
			return outcome(ctx, p, f.serve(ctx, p))
		},
	}
	flags := cmd.Flags()
	flags.StringArrayVar(&f.stores, "store", nil, storeUsage+";\nmay be repeated")
	flags.StringArrayVar(&f.files, "store-file", nil, storeFileUsage+storeFileDefault+";\nmay be repeated")
	f.namespace.check = driver.CheckNamespace
	flags.Var(&f.namespace, "namespace", namespaceUsage)
	flags.StringVar(&f.listen, "listen", "127.0.0.1:7345", "the `ADDRESS` to listen on")
	flags.StringVar(&f.clients, "clients", "", "a `FILE` of clients with their tokens and rights")
	flags.StringVar(&f.cert, "tls-cert", "", "a `FILE` with the server's certificate")
	flags.StringVar(&f.key, "tls-key", "", "a `FILE` with its key")
	flags.StringVar(&f.auth, "tls-client-ca", "",
		"a `FILE` with the authorities of client certificates,\nwhich are then required")
	flags.Var(&f.streams, "streams", "how many streams and grants a client may have at a time")
	return cmd
}

// security finds what the flags require of clients: how to identify them, TLS, and the host names of requests.
func (f *serveFlags) security() error {
	host, _, err := net.SplitHostPort(f.listen)
	if err != nil {
		return fmt.Errorf("--listen %q: give HOST:PORT, such as 127.0.0.1:7345", f.listen)
	}
	ip := net.ParseIP(host)
	switch loopback := host == "localhost" || ip != nil && ip.IsLoopback(); {
	case !loopback && f.clients == "" && f.auth == "":
		return fmt.Errorf("--listen %s: other machines can reach it: give --clients, or --tls-client-ca", f.listen)
	case f.cert != "" && f.key == "":
		return fmt.Errorf("--tls-cert %q: --tls-key is missing: give both", f.cert)
	case f.key != "" && f.cert == "":
		return fmt.Errorf("--tls-key %q: --tls-cert is missing: give both", f.key)
	case f.auth != "" && f.cert == "":
		return fmt.Errorf("--tls-client-ca %q: --tls-cert and --tls-key are missing: give all three", f.auth)
	case loopback:
		// A page of another site can get itself a name that leads to this machine.
		f.hosts = []string{"localhost", "127.0.0.1", "::1", host}
	}
	f.client = func(*http.Request) (page.Client, bool) { return page.Everything(""), true }
	if f.clients != "" {
		file, err := os.Open(f.clients)
		if err != nil {
			return fmt.Errorf("--clients: %v", err)
		}
		defer file.Close()
		if f.client, err = page.ReadClients(file); err != nil {
			return fmt.Errorf("--clients: %v", err)
		}
	}
	if f.cert == "" {
		return nil
	}
	pair, err := tls.LoadX509KeyPair(f.cert, f.key)
	if err != nil {
		return fmt.Errorf("--tls-cert, --tls-key: %v", err)
	}
	f.secure = &tls.Config{Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12}
	if f.auth != "" {
		pem, err := os.ReadFile(f.auth)
		if err != nil {
			return fmt.Errorf("--tls-client-ca: %v", err)
		}
		f.secure.ClientAuth, f.secure.ClientCAs = tls.RequireAndVerifyClientCert, x509.NewCertPool()
		if !f.secure.ClientCAs.AppendCertsFromPEM(pem) {
			return errors.New("--tls-client-ca: the file has no certificate")
		}
	}
	return nil
}

// resolve finds the URLs of the stores.
func (f *serveFlags) resolve(p *console.Printer) error {
	var all []storeFlags
	for _, s := range f.stores {
		all = append(all, storeFlags{url: text{s: s, given: true}})
	}
	for _, s := range f.files {
		all = append(all, storeFlags{file: text{s: s, given: true}})
	}
	if len(all) == 0 {
		all = []storeFlags{{}}
	}
	for _, s := range all {
		u, dir, err := s.resolve(p)
		if err != nil {
			return err
		}
		announce(p, dir)
		f.urls = append(f.urls, u)
	}
	return nil
}

func (f *serveFlags) serve(ctx context.Context, p *console.Printer) error {
	log := slog.New(slog.NewTextHandler(os.Stderr, nil))
	lockers := map[string]*holdfast.Locker{}
	defer func() {
		closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
		defer cancel()
		for _, l := range lockers {
			_ = l.Close(closing)
		}
	}()
	hooks, metrics, err := meter()
	if err != nil {
		return err
	}
	for _, u := range f.urls {
		l, err := open(ctx, u, f.namespace.s, false, holdfast.WithHooks(holdfast.LogHooks(log)), holdfast.WithHooks(hooks))
		if err != nil {
			return err
		}
		name := shownName(u)
		for n := 2; lockers[name] != nil; n++ {
			name = fmt.Sprintf("%s #%d", shownName(u), n)
		}
		lockers[name] = l
	}
	listener, err := listen(ctx, f.listen)
	if err != nil {
		p.Line("--listen: %v", err)
		return exited(exit.Usage)
	}
	serving, end := context.WithCancel(ctx)
	defer end()
	handler, err := page.Handler(serving, lockers,
		page.Options{Client: f.client, Hosts: f.hosts, Log: log, Streams: f.streams.n, Metrics: metrics})
	if err != nil {
		return err
	}
	scheme := "http"
	if f.secure != nil {
		scheme, listener = "https", tls.NewListener(listener, f.secure)
	} else if len(f.hosts) == 0 {
		p.Line("warning: tokens go over the network without TLS, unless a proxy adds it: give --tls-cert and --tls-key")
	}
	// The handler sets other deadlines for streams.
	server := &http.Server{Handler: handler, ReadHeaderTimeout: 10 * time.Second, ReadTimeout: time.Minute,
		IdleTimeout: 2 * time.Minute, MaxHeaderBytes: 16 << 10,
		ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelDebug)}
	failed := make(chan error, 1)
	go func() { failed <- server.Serve(listener) }()
	p.Line("serving on %s://%s/", scheme, listener.Addr())
	select {
	case err = <-failed:
	case <-ctx.Done():
		end() // the streams end before Shutdown waits for them
		closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
		defer cancel()
		if err = server.Shutdown(closing); err != nil {
			_ = server.Close()
		}
		<-failed
	}
	return err
}

// meter returns hooks that count, and the page of their metrics for Prometheus.
func meter() (holdfast.Hooks, http.Handler, error) {
	registry := prometheus.NewRegistry()
	exporter, err := otelprometheus.New(otelprometheus.WithRegisterer(registry),
		otelprometheus.WithoutScopeInfo(), otelprometheus.WithoutTargetInfo())
	if err != nil {
		return nil, nil, err
	}
	hooks, err := otelhooks.New(otelhooks.WithMeterProvider(metric.NewMeterProvider(metric.WithReader(exporter))))
	return hooks, promhttp.HandlerFor(registry, promhttp.HandlerOpts{}), err
}

// shownName returns the name of a store: its URL without user, password and parameters.
func shownName(raw string) string {
	u, err := storeurl.Read(raw)
	if err != nil {
		return "store"
	}
	return (&url.URL{Scheme: u.Scheme, Host: u.Host, Path: u.Path}).String()
}
