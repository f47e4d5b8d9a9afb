package cli

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/spf13/cobra"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/console"
	"github.com/holdfast-go/holdfast/internal/shape"
)

const mcpLong = `Mcp is a server of the Model Context Protocol on standard input and output, for assistants
that edit the same files or use the same resources. It offers the tools lock, unlock and
list. All locks of a connection end with it, and with the process.

A lock can be lost, for example by holdfast break. The next answer names it.

` + inspectEnvironment + `

Exit status:
  0    the client has closed the connection` + inspectStatus

func newMCP(p *console.Printer) *cobra.Command {
	var store storeFlags
	cmd := &cobra.Command{
		Use:   "mcp [flags]",
		Short: "Offer locks to assistants, over the Model Context Protocol",
		Long:  mcpLong,
		Example: `  {"mcpServers": {"holdfast": {"command": "holdfast", "args": ["mcp"]}}}
  holdfast mcp --store redis://localhost:6379`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return inspect(cmd, &store, p, func(ctx context.Context, l *holdfast.Locker) error {
				c := &mcpConnection{ctx: ctx, locker: l, held: map[string]*holdfast.Lock{}}
				err := c.server().Run(ctx, &mcp.StdioTransport{})
				return errors.Join(err, c.end())
			})
		},
	}
	store.add(cmd)
	return cmd
}

// mcpConnection has the locks of one connection.
type mcpConnection struct {
	ctx    context.Context // of the process
	locker *holdfast.Locker

	mu   sync.Mutex
	held map[string]*holdfast.Lock
	lost []string // since the last answer
}

type (
	lockInput struct {
		Name   string  `json:"name" jsonschema:"the name of the lock, such as the path of a file"`
		Wait   float64 `json:"wait,omitempty" jsonschema:"how many seconds to wait for the lock if it is held, at most a day; default 0"`
		Reason string  `json:"reason,omitempty" jsonschema:"what the lock is for; others see it"`
	}
	unlockInput struct {
		Name string `json:"name" jsonschema:"the name of a lock that this connection holds"`
	}
	listInput struct {
		Prefix string `json:"prefix,omitempty" jsonschema:"only names that begin with it; default all"`
	}
	lockOutput struct {
		Token string `json:"token" jsonschema:"the fencing token: it rises with each grant of the name"`
		lostOutput
	}
	lostOutput struct {
		Lost []string `json:"lost,omitempty" jsonschema:"locks of this connection that were lost: others may hold them now"`
	}
	listOutput struct {
		shape.List
		lostOutput
	}
)

func (c *mcpConnection) server() *mcp.Server {
	s := mcp.NewServer(&mcp.Implementation{Name: "holdfast", Version: thisVersion().Version}, &mcp.ServerOptions{
		Instructions: "Lock a name before you change what it stands for, and unlock it afterwards. " +
			"An answer that lists a name under lost means: stop that work, others may hold the lock."})
	mcp.AddTool(s, &mcp.Tool{Name: "lock", Description: "Take a lock. It fails, and names the holder, if the lock is not free in time. " +
		"The lock is held until unlock, or until the connection ends."}, c.lock)
	mcp.AddTool(s, &mcp.Tool{Name: "unlock", Description: "Release a lock of this connection."}, c.unlock)
	mcp.AddTool(s, &mcp.Tool{Name: "list", Description: "List the locks that are held or awaited, of all clients."}, c.list)
	return s
}

func (c *mcpConnection) lock(ctx context.Context, _ *mcp.CallToolRequest, in lockInput) (*mcp.CallToolResult, lockOutput, error) {
	if in.Wait < 0 || in.Wait > 24*3600 {
		return nil, lockOutput{}, fmt.Errorf("wait %v: give 0 to 86400 seconds", in.Wait)
	}
	c.mu.Lock()
	k := c.held[in.Name]
	c.mu.Unlock()
	if k == nil {
		options := []holdfast.LockOption{holdfast.Reason(in.Reason)}
		take := c.locker.TryLock
		if in.Wait > 0 {
			take = c.locker.Lock
			options = append(options, holdfast.Wait(time.Duration(in.Wait*float64(time.Second))), holdfast.WaitContext(ctx))
		}
		var err error
		if k, err = take(c.ctx, in.Name, options...); err != nil {
			return nil, lockOutput{}, err
		}
		if err := ctx.Err(); err != nil { // the client gets no answer to a call that it has cancelled
			return nil, lockOutput{}, errors.Join(err, k.Unlock())
		}
		c.mu.Lock()
		c.held[in.Name] = k
		c.mu.Unlock()
		context.AfterFunc(k.Context(), func() { c.ended(in.Name, k) })
	}
	return nil, lockOutput{shape.Token(k.Token()), c.answer()}, nil
}

func (c *mcpConnection) unlock(_ context.Context, _ *mcp.CallToolRequest, in unlockInput) (*mcp.CallToolResult, lostOutput, error) {
	c.mu.Lock()
	k := c.held[in.Name]
	delete(c.held, in.Name)
	c.mu.Unlock()
	if k == nil {
		return nil, lostOutput{}, fmt.Errorf("this connection does not hold %q", in.Name)
	}
	return nil, c.answer(), k.Unlock()
}

func (c *mcpConnection) list(ctx context.Context, _ *mcp.CallToolRequest, in listInput) (*mcp.CallToolResult, listOutput, error) {
	states, err := list(ctx, c.locker, in.Prefix)
	return nil, listOutput{shape.OfList(shape.Jobs(states, in.Prefix), time.Now()), c.answer()}, err
}

// ended releases a lock whose context has ended. If the connection had not unlocked it, it was lost.
func (c *mcpConnection) ended(name string, k *holdfast.Lock) {
	c.mu.Lock()
	if c.held[name] == k {
		delete(c.held, name)
		c.lost = append(c.lost, name)
	}
	c.mu.Unlock()
	_ = k.Unlock() // on some stores break waits for it
}

// answer returns the part that each answer has.
func (c *mcpConnection) answer() lostOutput {
	c.mu.Lock()
	defer c.mu.Unlock()
	lost := c.lost
	c.lost = nil
	return lostOutput{lost}
}

// end releases all locks.
func (c *mcpConnection) end() (err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, k := range c.held {
		err = errors.Join(err, k.Unlock())
	}
	return err
}
