package cli

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"net/url"
	"os"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/console"
	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/printable"
	"github.com/holdfast-go/holdfast/internal/shape"
)

// storeInfo is one entry of `holdfast stores --json`.
type storeInfo struct {
	Scheme string `json:"scheme"`
	// URL is the probed URL without its password.
	URL        string      `json:"url,omitempty"`
	Guarantees *guarantees `json:"guarantees,omitempty"`

	rows []driver.Row
}

// guarantees is the JSON form of driver.Guarantees. A change of the Go type does not change this
// form. Durations are in seconds.
type guarantees struct {
	Kind      string   `json:"kind"`
	Scope     string   `json:"scope"`
	Crash     string   `json:"crash_frees"`
	Pause     string   `json:"paused_holder"`
	Order     string   `json:"order"`
	Wake      string   `json:"wake"`
	Fallback  float64  `json:"wake_fallback_seconds"`
	Wanted    string   `json:"wanted"` // empty if waiters are not shown
	Shared    bool     `json:"shared"`
	Semaphore bool     `json:"semaphore"`
	Mixed     bool     `json:"mixed_limits"`
	Slots     bool     `json:"slots"`
	Tokens    string   `json:"tokens"`
	EarlyEnd  []string `json:"early_end"`
	Notice    float64  `json:"early_end_notice_seconds"`
	TTL       *ttl     `json:"ttl"` // null if grants do not expire
	Linger    bool     `json:"min_hold_kept_by_store"`
	Break     string   `json:"break"`
	Visible   string   `json:"inspection"`
	Notes     []string `json:"notes"`
}

type ttl struct {
	Min         float64 `json:"min_seconds"`
	Max         float64 `json:"max_seconds"`
	Granularity float64 `json:"granularity_seconds"`
}

func infoOf(g holdfast.Guarantees) *guarantees {
	s := &guarantees{
		Kind: g.Kind, Scope: string(g.Scope), Crash: string(g.Crash), Pause: string(g.Pause), Order: string(g.Order),
		Wake: string(g.Wake), Fallback: g.Fallback.Seconds(), Wanted: string(g.Wanted),
		Shared: g.Shared, Semaphore: g.Semaphore, Mixed: g.Mixed, Slots: g.Slots,
		Tokens: g.Tokens, EarlyEnd: append([]string{}, g.EarlyEnd...), Notice: g.Notice.Seconds(),
		Linger: g.Linger, Break: string(g.Break), Visible: string(g.Visible), Notes: append([]string{}, g.Notes...),
	}
	if g.MaxTTL > 0 {
		s.TTL = &ttl{g.MinTTL.Seconds(), g.MaxTTL.Seconds(), g.Granularity.Seconds()}
	}
	return s
}

func newStores(p *console.Printer) *cobra.Command {
	asJSON := false
	var store storeFlags
	cmd := &cobra.Command{
		Use:   "stores [flags] [URL]",
		Short: "List the stores of this build, or show what the store of a URL guarantees",
		Long: `Stores lists the URL schemes of this build, and what the stores without a server guarantee.
What other stores guarantee depends on the URL, such as its recipe, and on the server. With a
URL, or a file that contains one, it opens that store and shows its recipe and guarantees.

Exit status:` + inspectStatus,
		Example: `  holdfast stores
  holdfast stores file:///var/lib/locks
  holdfast stores --store-file /etc/holdfast/store`,
		Args: func(_ *cobra.Command, args []string) error {
			switch len(args) {
			case 0:
			case 1:
				store.setArgument(args[0])
			default:
				return fmt.Errorf("%d arguments: give one URL, or none", len(args))
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, stop := interruptible(cmd.Context())
			defer stop()
			list := linked
			if store.url.given || store.file.given {
				raw, _, err := store.resolve(p)
				if err != nil {
					return err
				}
				list = func(ctx context.Context) ([]storeInfo, error) { return given(ctx, raw) }
			}
			all, err := list(ctx)
			if err == nil {
				err = printStores(cmd.OutOrStdout(), all, asJSON)
			}
			return outcome(ctx, p, err)
		},
	}
	cmd.Flags().Var(&store.file, "store-file", storeFileUsage)
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

// given probes the store of a URL.
func given(ctx context.Context, raw string) ([]storeInfo, error) {
	info, err := probe(ctx, raw)
	info.URL = printable.Redact(raw, printable.Secrets(raw)...)
	return []storeInfo{info}, err
}

// linked lists the schemes of the linked stores. To show the guarantees of a store that needs no
// server, it opens the store in memory or in a temporary directory.
func linked(ctx context.Context) ([]storeInfo, error) {
	dir, err := os.MkdirTemp("", "holdfast-stores-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	local := map[string]string{
		"file":   (&url.URL{Scheme: "file", Path: dir}).String(),
		"memory": "memory://",
		"sqlite": (&url.URL{Scheme: "sqlite", Path: dir + "/locks.db"}).String(),
	}
	var list []storeInfo
	for _, scheme := range driver.Schemes() {
		info := storeInfo{Scheme: scheme}
		if raw, ok := local[scheme]; ok {
			if info, err = probe(ctx, raw); err != nil {
				// The store refused the temporary directory. That is no error of the store that
				// the user will open.
				info = storeInfo{Scheme: scheme}
			}
		}
		list = append(list, info)
	}
	return list, nil
}

func probe(ctx context.Context, raw string) (info storeInfo, err error) {
	l, err := holdfast.Open(ctx, raw)
	if err != nil {
		return info, err
	}
	defer closeBriefly(ctx, l)
	g, err := l.Guarantees(ctx)
	if err != nil {
		return info, err
	}
	scheme, _, _ := strings.Cut(raw, ":")
	return storeInfo{Scheme: scheme, Guarantees: infoOf(g), rows: g.Rows()}, nil
}

func printStores(w io.Writer, list []storeInfo, asJSON bool) error {
	if asJSON {
		return shape.JSON(w, map[string][]storeInfo{"stores": list}, false)
	}
	for i, s := range list {
		if i > 0 {
			fmt.Fprintln(w)
		}
		title := cmp.Or(s.URL, s.Scheme+"://")
		fmt.Fprintln(w, title)
		if s.rows == nil {
			fmt.Fprintf(w, "  guarantees depend on the URL and the server: holdfast stores %s://...\n", s.Scheme)
			continue
		}
		table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
		fmt.Fprintf(table, "  recipe\t%s\n", s.Guarantees.Kind)
		for _, r := range s.rows {
			fmt.Fprintf(table, "  %s\t%s\n", r.Key, r.Value)
		}
		if err := table.Flush(); err != nil {
			return err
		}
	}
	return nil
}
