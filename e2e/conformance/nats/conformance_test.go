package nats

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/driver/drivertest"
	"github.com/holdfast-go/holdfast/driver/record"
	"github.com/holdfast-go/holdfast/e2e/servertest"
	"github.com/holdfast-go/holdfast/internal/servers"
	"github.com/holdfast-go/holdfast/internal/wakeup"
	"github.com/holdfast-go/holdfast/natsstore"
)

// TestConformance runs the suite on one server. If the tests are not short, the suite sets the server's clock.
func TestConformance(t *testing.T) {
	var clock func(testing.TB, time.Duration)
	if !testing.Short() {
		clock = setClock(t)
	}
	conform(t, start(t, servers.NATSConfig{}), clock)
}

// TestConformanceCluster runs the suite on three servers with three replicas.
func TestConformanceCluster(t *testing.T) {
	conform(t, start(t, servers.NATSConfig{Members: 3}), nil)
}

func conform(t *testing.T, c *cluster, clock func(testing.TB, time.Duration)) {
	at := func(t testing.TB, url, namespace string) driver.Store {
		s, err := natsstore.Open(context.Background(), url, namespace)
		check(t, err)
		return s
	}
	open := func(t testing.TB, namespace string) driver.Store { return at(t, c.url(c.addresses()), namespace) }
	h := drivertest.Harness{
		Open:                open,
		OpenWithoutFallback: func(t testing.TB, namespace string) driver.Store { return wakeup.WithoutFallback(open(t, namespace)) },
		SetClock:            clock,
		Outside: func(t testing.TB, namespace string) driver.Store {
			s := at(t, strings.Replace(c.url(c.addresses()), "bucket=locks", "bucket=other", 1), namespace)
			check(t, s.(*natsstore.Store).Init(t.Context()))
			return s
		},
		Corrupt: func(t testing.TB, namespace, name string) func() { return c.corrupt(t, namespace, name) },
		Bubble:  len(c.members) == 1, // a read of a replica that lags sleeps, and no time passes in a bubble
	}
	servertest.Disturb(&h, func(t testing.TB, addresses []string) driver.Store { return at(t, c.url(addresses), "") }, c.proxies...)
	drivertest.Run(t, h)
}

// corrupt replaces the record of a held name. The returned function deletes it, as an operator does.
func (c *cluster) corrupt(t testing.TB, namespace, name string) (remove func()) {
	subject := "$KV.locks.lock._" + namespace + "._" + name
	publish := func(m *nats.Msg) {
		nc, err := nats.Connect(c.members[0].Client)
		check(t, err)
		defer nc.Close()
		m.Subject = subject
		if _, err := nc.RequestMsg(m, 5*time.Second); err != nil {
			t.Error(err)
		}
	}
	publish(&nats.Msg{Data: []byte("abcdefghijklmnopqrstuvwxyz{}")})
	return func() { publish(&nats.Msg{Header: nats.Header{"KV-Operation": {"DEL"}}}) }
}

func TestValues(t *testing.T) {
	c := start(t, servers.NATSConfig{})
	drivertest.RunValues(t, func(t testing.TB, namespace string) *record.Store { return c.open(t, namespace).Store })
}
