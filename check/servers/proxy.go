//go:build linux || darwin

package servers

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	toxiproxy "github.com/Shopify/toxiproxy/v2"
	"github.com/rs/zerolog"
)

// Proxy stands before a server, on a port of its own, and spoils what passes: the
// connections through it can be cut, their answers dropped, or delayed. It is
// toxiproxy, in this process.
type Proxy struct {
	mu  sync.Mutex
	p   *toxiproxy.Proxy
	cut bool
}

// NewProxy starts a proxy before an address, HOST:PORT.
func NewProxy(upstream string) (*Proxy, error) {
	s := toxiproxy.NewServer(toxiproxy.NewMetricsContainer(nil), zerolog.Nop())
	p := toxiproxy.NewProxy(s, "proxy", "127.0.0.1:0", upstream)
	if err := p.Start(); err != nil {
		return nil, fmt.Errorf("servers: a proxy before %s: %w", upstream, err)
	}
	return &Proxy{p: p}, nil
}

// Address is where clients connect instead; it stays the same.
func (p *Proxy) Address() string { return p.p.Listen }

// Cut ends every connection and refuses new ones, until Heal.
func (p *Proxy) Cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.cut {
		p.p.Stop()
		p.cut = true
	}
}

// DropAnswers lets requests through and nothing back, until Heal.
func (p *Proxy) DropAnswers() error {
	return p.add(`{"name":"drop","type":"timeout","stream":"downstream","attributes":{"timeout":0}}`)
}

// Silence lets nothing through either way and leaves connections open, as an
// unplugged cable does, until Heal.
func (p *Proxy) Silence() error {
	if err := p.DropAnswers(); err != nil {
		return err
	}
	return p.add(`{"name":"silence","type":"timeout","stream":"upstream","attributes":{"timeout":0}}`)
}

// Delay holds up every answer that long, until Heal.
func (p *Proxy) Delay(d time.Duration) error {
	return p.add(fmt.Sprintf(`{"name":"delay","type":"latency","stream":"downstream","attributes":{"latency":%d}}`, d.Milliseconds()))
}

func (p *Proxy) add(toxic string) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	_, err := p.p.Toxics.AddToxicJson(strings.NewReader(toxic))
	return err
}

// Heal ends whatever was begun. Connections whose data was dropped are ended, as
// they have lost their place in the conversation.
func (p *Proxy) Heal() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.p.Toxics.ResetToxics(context.Background())
	if !p.cut {
		return nil
	}
	p.cut = false
	return p.p.Start()
}

// Redirect ends every connection and leads new ones to another address.
func (p *Proxy) Redirect(upstream string) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.cut {
		p.p.Stop()
	}
	p.p.Upstream = upstream
	if p.cut {
		return nil // until Heal
	}
	return p.p.Start()
}

// Close ends the proxy and its connections.
func (p *Proxy) Close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.cut {
		p.p.Stop()
		p.cut = true
	}
}
