//go:build linux || darwin

package check

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/backoff"
	"github.com/holdfast-go/holdfast/internal/servers"
)

// Holdfast is the main function of the holdfast command: it gets the arguments and returns the exit status. The local
// store "gateway" needs it: MaybeWorker calls it, for `holdfast serve` in a process of its own. A program that
// checks this store sets it to Main of package command before that. The holdfast command has set it.
var Holdfast func(args []string) int

// gatewayMark is the value of workerEnv that marks a process of Holdfast.
const gatewayMark = "gateway"

// gatewayLong is the percentage of long locks: a fault of a gateway is for those that outlast it.
const gatewayLong = 30

// gatewayTarget is holdfast serve in two processes on one Redis. Each worker locks through one of them. The links of
// the workers and those to Redis have faults.
func gatewayTarget(ctx context.Context, dir string, t *Target) error {
	if Holdfast == nil {
		return badConfig("Local", "gateway: this program has no holdfast serve: set check.Holdfast")
	}
	if err := redisTarget(ctx, dir, t); err != nil {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	var all []*servers.Gateway
	var upstreams []string
	for range 2 {
		s, err := servers.StartGateway(ctx, dir, self, t.URL, workerEnv+"="+gatewayMark)
		if err != nil {
			return err
		}
		t.onClose(s.Kill)
		all, upstreams = append(all, s), append(upstreams, s.Address)
	}
	links, hosts, err := t.proxies(upstreams...)
	if err != nil {
		return err
	}
	t.gateway = func(worker int) string { return "http://" + hosts[worker%len(hosts)] }
	faults := []StoreFault{pauseFault(faultPauseGateway, oneOf(all)), killFault(faultKillGateway, oneOf(all))}
	faults[0].Often = 5 // its workers hear nothing, and their connections stay: only their clocks end their locks
	for _, f := range proxyFaults(links...) {
		// A lock ends with its connection, which the gateway may notice before the worker.
		if f.Kind != faultDelayServer {
			f = early(f)
		}
		f.Kind = map[string]string{
			faultCutServer: faultCutGateway, faultSilenceServer: faultSilenceGateway,
			faultDropServer: faultDropGateway, faultDelayServer: faultDelayGateway,
		}[f.Kind]
		faults = append(faults, f)
	}
	// Redis alone is checked with its other faults.
	for _, f := range t.Faults {
		if slices.Contains(unreachable, f.Kind) || f.Kind == "flush" {
			faults = append(faults, f)
		}
	}
	t.Faults = OneAtATime(faults)
	return nil
}

// workerLock is what a worker needs of a *holdfast.Lock.
type workerLock interface {
	Context() context.Context
	Remaining() time.Duration
	Leases() []holdfast.Lease
	Unlock() error
}

// gateway locks through holdfast serve.
type gateway struct {
	url  string
	http http.Client
}

// gatewayTimeout limits a request that does not wait for a lock.
const gatewayTimeout = 5 * time.Second

// gatewayLine is a line of a stream, or the body of an error.
type gatewayLine struct {
	Event, ID string
	Token     uint64 `json:",string"`
	Slot      *int
	Valid     float64 `json:"valid_seconds"`
	Error     struct{ Code, Cause, Message string }
}

func newGateway(url string) *gateway {
	return &gateway{url: url, http: http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: maxWorkers}}}
}

func (g *gateway) post(ctx context.Context, path string, body any) (*http.Response, error) {
	text, err := json.Marshal(body)
	if err != nil {
		return nil, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, g.url+"/v1/"+path, bytes.NewReader(text))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := g.http.Do(req)
	if err == nil && resp.StatusCode != http.StatusOK {
		defer resp.Body.Close()
		var in gatewayLine
		_ = json.NewDecoder(resp.Body).Decode(&in) // a status without a body is an error, too
		err = in.failed()
	}
	return resp, err
}

// failed returns the error of a line.
func (in *gatewayLine) failed() error {
	return fmt.Errorf("gateway: %s: %s", in.Error.Code, in.Error.Message)
}

// lock requests the name of a planned lock, and waits until the stream has its grant.
func (g *gateway) lock(ctx context.Context, s *plannedLock) (workerLock, error) {
	in := map[string]any{"ttl_seconds": s.TTL.Seconds(), "min_hold_seconds": s.MinHold.Seconds()}
	switch {
	case s.Limit == driver.Unlimited:
		in["shared"] = true
	case s.Limit > 1:
		in["limit"] = s.Limit
	}
	if s.Try || s.Wait > 0 {
		in["wait_seconds"] = s.Wait.Seconds()
	}
	// The lock outlives ctx until its Unlock.
	stream, cut := context.WithCancel(context.WithoutCancel(ctx))
	waiting := context.AfterFunc(ctx, cut)
	sent := time.Now()
	resp, err := g.post(stream, "locks/"+url.PathEscape(s.Names[0]), in)
	var lines *json.Decoder
	line := gatewayLine{Event: "queued"}
	if err == nil {
		lines = json.NewDecoder(resp.Body)
	}
	for err == nil && line.Event == "queued" {
		line = gatewayLine{}
		err = lines.Decode(&line)
	}
	if err == nil && line.Event != "granted" {
		err = line.failed()
	}
	if !waiting() && err == nil {
		err = context.Cause(ctx)
	}
	if err != nil {
		cut() // closes the body, too
		// Without a server the workers would fill the history.
		_ = backoff.Sleep(ctx, 20*time.Millisecond)
		return nil, err
	}
	k := &streamLock{g: g, id: line.ID, sent: sent, cut: cut, ended: make(chan struct{})}
	k.lease = holdfast.Lease{Name: s.Names[0], Token: line.Token, Slot: driver.NoSlot}
	if line.Slot != nil {
		k.lease.Slot = *line.Slot
	}
	k.ctx.Context, k.end = context.WithCancelCause(ctx)
	k.ctx.lock = k
	k.timer = time.AfterFunc(time.Hour, func() { k.Remaining() })
	k.extend(&line)
	go k.read(resp.Body, lines)
	return k, nil
}

// streamLock is a lock that a worker holds as long as its stream.
type streamLock struct {
	g     *gateway
	id    string
	lease holdfast.Lease
	sent  time.Time
	ctx   streamContext
	end   context.CancelCauseFunc
	cut   context.CancelFunc // ends the stream
	ended chan struct{}      // closed when the stream has ended
	timer *time.Timer

	mu    sync.Mutex
	until time.Time
}

// streamContext is the context of a streamLock. Err reads the clock, because a process that was stopped continues
// before its timers fire.
type streamContext struct {
	context.Context
	lock *streamLock
}

func (c *streamContext) Err() error {
	c.lock.Remaining()
	return c.Context.Err()
}

func (k *streamLock) Context() context.Context { return &k.ctx }

func (k *streamLock) Leases() []holdfast.Lease { return []holdfast.Lease{k.lease} }

func (k *streamLock) Remaining() time.Duration {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.ctx.Context.Err() != nil {
		return 0
	}
	left := time.Until(k.until)
	if left <= 0 {
		k.lose(holdfast.CauseExpired)
	}
	return max(left, 0)
}

// extend sets the validity, which counts from the send of the request.
func (k *streamLock) extend(line *gatewayLine) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.until = k.sent.Add(time.Duration(line.Valid * float64(time.Second)))
	k.timer.Reset(time.Until(k.until))
}

// lose ends the context, then the stream.
func (k *streamLock) lose(cause holdfast.Cause) {
	k.end(&holdfast.LostError{Name: k.lease.Name, Store: "gateway", Token: k.lease.Token, Cause: cause})
	k.cut()
}

// read reads what the gateway reports until the stream ends.
func (k *streamLock) read(body io.Closer, lines *json.Decoder) {
	defer close(k.ended)
	defer body.Close()
	defer k.timer.Stop()
	for {
		var line gatewayLine
		switch err := lines.Decode(&line); {
		case err != nil:
			k.lose(holdfast.CauseClosed)
			return
		case line.Event == "valid":
			k.extend(&line)
		case line.Event == "lost":
			k.lose(holdfast.Cause(line.Error.Cause))
		}
	}
}

// Unlock ends the context, and releases the lock by request. If there is no answer, the end of the stream releases
// the lock.
func (k *streamLock) Unlock() error {
	k.Remaining()
	k.end(holdfast.ErrReleased)
	defer k.cut()
	if lost, ok := errors.AsType[*holdfast.LostError](context.Cause(k.ctx.Context)); ok {
		return lost
	}
	ctx, cancel := context.WithTimeout(context.Background(), gatewayTimeout)
	defer cancel()
	resp, err := k.g.post(ctx, "release/"+k.id, struct{}{})
	if err != nil {
		return err
	}
	select { // after its last line the connection can serve another request
	case <-k.ended:
	case <-ctx.Done():
	}
	return resp.Body.Close()
}
