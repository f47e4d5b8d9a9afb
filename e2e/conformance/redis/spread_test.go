package redis

import (
	"bufio"
	"context"
	"fmt"
	"hash/fnv"
	"io"
	"net"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/e2e/conformance/requests"
	"github.com/holdfast-go/holdfast/internal/servers"
)

// startSpreading starts a proxy that sends each script to the server of its first key, and every other
// command to the first server. While down is set, it cannot reach the last server.
func startSpreading(t *testing.T, down *atomic.Bool, rs ...*servers.Redis) (address string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	check(t, err)
	var all sync.WaitGroup
	ctx, cancel := context.WithCancel(context.Background())
	all.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			all.Go(func() { spreadCommands(ctx, c, down, rs) })
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		cancel()
		all.Wait()
	})
	return l.Addr().String()
}

// spreadCommands serves one connection of a client.
func spreadCommands(ctx context.Context, c net.Conn, down *atomic.Bool, rs []*servers.Redis) {
	defer c.Close()
	ends := []func() bool{context.AfterFunc(ctx, func() { _ = c.Close() })}
	defer func() {
		for _, end := range ends {
			end()
		}
	}()
	to, from := make([]net.Conn, len(rs)), make([]*bufio.Reader, len(rs))
	for i, r := range rs {
		s, err := net.Dial("tcp", r.Address())
		if err != nil {
			return
		}
		defer s.Close()
		ends = append(ends, context.AfterFunc(ctx, func() { _ = s.Close() }))
		to[i], from[i] = s, bufio.NewReader(s)
	}
	due := make(chan int, 1<<16) // the server of each answer, in order; -1 for an error of the proxy
	var answering sync.WaitGroup
	defer answering.Wait()
	defer close(due)
	answering.Go(func() {
		w := bufio.NewWriter(c)
		for i := range due {
			var err error
			if i < 0 {
				_, err = io.WriteString(w, "-ERR upstream failure\r\n")
			} else {
				err = copyValue(w, from[i])
			}
			if err != nil {
				_ = c.Close()
				return
			}
			if len(due) == 0 {
				_ = w.Flush()
			}
		}
	})
	in := bufio.NewReader(c)
	for {
		var raw strings.Builder
		words, err := readCommand(in, &raw)
		if err != nil {
			return
		}
		i := 0
		if strings.HasPrefix(strings.ToUpper(words[0]), "EVAL") && len(words) > 3 && words[2] != "0" {
			h := fnv.New32a()
			_, _ = io.WriteString(h, words[3])
			i = int(h.Sum32() % uint32(len(rs)))
		}
		if down.Load() && i == len(rs)-1 {
			i = -1
		} else if _, err := io.WriteString(to[i], raw.String()); err != nil {
			return
		}
		due <- i
	}
}

// readCommand reads a command, and copies it.
func readCommand(r *bufio.Reader, raw *strings.Builder) (words []string, err error) {
	head, err := r.ReadString('\n')
	if err != nil {
		return nil, err
	}
	raw.WriteString(head)
	n, err := strconv.Atoi(strings.TrimSpace(head[1:]))
	for range n {
		var line string
		if line, err = r.ReadString('\n'); err != nil {
			return nil, err
		}
		size, _ := strconv.Atoi(strings.TrimSpace(line[1:]))
		word := make([]byte, size+2)
		if _, err = io.ReadFull(r, word); err != nil {
			return nil, err
		}
		raw.WriteString(line)
		raw.Write(word)
		words = append(words, string(word[:size]))
	}
	return words, err
}

// copyValue copies an answer.
func copyValue(w io.Writer, r *bufio.Reader) error {
	line, err := r.ReadString('\n')
	if err != nil {
		return err
	}
	if _, err := io.WriteString(w, line); err != nil {
		return err
	}
	n, _ := strconv.Atoi(strings.TrimSpace(line[1:]))
	switch line[0] {
	case '$', '=', '!':
		if n >= 0 {
			_, err = io.CopyN(w, r, int64(n+2))
		}
		return err
	case '%':
		n *= 2
	case '*', '~', '>':
	default:
		return nil
	}
	for ; n > 0 && err == nil; n-- {
		err = copyValue(w, r)
	}
	return err
}

// TestNamesOnSeveralServersAreNotCombined: a proxy sends each script to the server of its first key,
// without an error for the other keys. One client sends several requests at the same time: they exclude
// the requests of another client, and the check of many grants finds no loss. That holds too if the
// proxy could not reach one of the servers at the first request.
func TestNamesOnSeveralServersAreNotCombined(t *testing.T) {
	t.Parallel()
	for _, unreachable := range []bool{false, true} {
		t.Run(fmt.Sprint("unreachable-", unreachable), func(t *testing.T) { testSpread(t, unreachable) })
	}
}

func testSpread(t *testing.T, unreachable bool) {
	rs := []*servers.Redis{start(t), start(t)}
	var down atomic.Bool
	address := startSpreading(t, &down, rs...)
	s, other := open(t, "redis://"+address), open(t, "redis://"+address)
	if unreachable {
		down.Store(true)
		if _, err := s.Guarantees(t.Context()); err != nil {
			t.Fatal(err)
		}
		down.Store(false)
	}
	if _, err := other.Guarantees(t.Context()); err != nil {
		t.Fatal(err)
	}
	const names = 128
	made := make([]driver.Request, names)
	all := numbered(t.Name(), names)
	each(t, names, names, func(i int) error {
		made[i] = request(all[i], driver.Exclusive, long)
		_, err := s.Acquire(t.Context(), made[i])
		return err
	})
	for _, r := range made {
		if _, err := other.Acquire(t.Context(), request(r.Name, driver.Exclusive, long)); driver.CodeOf(err) != driver.CodeBusy {
			t.Fatalf("%s, which another client holds: %v, want busy", r.Name, err)
		}
	}
	looks := func() int { return calls(t, rs[0], "hget") + calls(t, rs[1], "hget") }
	before := looks()
	eventually(t, "the store does not check the grants", func() bool { return looks() >= before+2*names })
	for _, r := range made {
		requests.Of(r).Keeps(t)
	}
}
