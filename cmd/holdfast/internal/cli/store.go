package cli

import (
	"errors"
	"fmt"
	"net/url"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/console"
	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/filestore"
	"github.com/holdfast-go/holdfast/internal/printable"
	"github.com/holdfast-go/holdfast/internal/storeurl"
)

// The environment variables that select a store.
const (
	envStore     = "HOLDFAST_STORE"
	envStoreFile = "HOLDFAST_STORE_FILE"
)

// storeFlags contains the flags that select the store and its namespace.
type storeFlags struct {
	url, file, namespace text
	argument             bool // url is the argument of the subcommand, and no flag
	required             bool // there is no default store
}

func (f *storeFlags) add(cmd *cobra.Command) {
	f.namespace.check = driver.CheckNamespace
	flags := cmd.Flags()
	flags.Var(&f.url, "store", storeUsage)
	flags.Var(&f.file, "store-file", storeFileUsage+storeFileDefault)
	flags.Var(&f.namespace, "namespace", namespaceUsage)
}

const (
	storeUsage       = "the store's `URL` (default $" + envStore + ", else files of this user)"
	storeFileUsage   = "a `FILE` that holds the store's URL, which keeps a password out of ps"
	storeFileDefault = "\n(default $" + envStoreFile + ")"
	namespaceUsage   = "keeps applications on one store apart; at most 128 bytes"
)

// announce prints where the locks of the default store are. dir is empty for another store.
func announce(p *console.Printer, dir string) {
	if dir != "" {
		p.Line("locks in %s, this machine and user only; set %s", dir, envStore)
	}
}

// resolve returns the store's URL. For the default store it also returns the directory. An error
// names the flag, variable or file of a bad URL, and never quotes the URL.
func (f *storeFlags) resolve(p *console.Printer) (storeURL, dir string, err error) {
	from, raw, given := "", "", "--store"
	if f.argument {
		given = "URL"
	}
	urlEnv, fileEnv := os.Getenv(envStore), os.Getenv(envStoreFile)
	switch {
	case f.url.given && f.file.given:
		return "", "", fmt.Errorf("%s and --store-file exclude each other: give one", given)
	case f.url.given:
		from, raw = given, f.url.s
	case f.file.given:
		from, raw, err = fromFile("--store-file", f.file.s)
	case urlEnv != "" && fileEnv != "":
		return "", "", fmt.Errorf("%s and %s exclude each other: unset one", envStore, envStoreFile)
	case urlEnv != "":
		from, raw = envStore, urlEnv
	case fileEnv != "":
		from, raw, err = fromFile(envStoreFile, fileEnv)
	case f.required:
		return "", "", fmt.Errorf("no store is given, and --require-store excludes files of this machine: set %s or %s, or give --store or --store-file",
			envStore, envStoreFile)
	default:
		dir, err := filestore.DefaultDir()
		if err != nil {
			return "", "", fmt.Errorf("no store is given, and no home directory to keep locks in: set %s, or HOME: %v", envStore, err)
		}
		return (&url.URL{Scheme: "file", Path: dir}).String(), dir, nil
	}
	if err != nil {
		return "", "", err
	}
	p.Hide(printable.Secrets(raw))
	if err := checkURL(from, raw); err != nil {
		return "", "", err
	}
	switch {
	case from != given || !printable.HasPassword(raw):
	case f.argument:
		p.Line("warning: the URL shows its password to every user that can list processes: give --store-file")
	default:
		p.Line("warning: --store shows its password to every user that can list processes: set %s or give --store-file", envStore)
	}
	return raw, "", nil
}

// urlArgument checks the arguments of a subcommand that takes a URL, or else finds it in a flag or the environment.
func (f *storeFlags) urlArgument(_ *cobra.Command, args []string) error {
	switch {
	case len(args) == 0 && (f.file.given || os.Getenv(envStore) != "" || os.Getenv(envStoreFile) != ""):
		return nil
	case len(args) != 1:
		return fmt.Errorf("%d arguments: give one URL, or --store-file, or set %s", len(args), envStore)
	}
	f.setArgument(args[0])
	return nil
}

// setArgument makes the argument of a subcommand the URL.
func (f *storeFlags) setArgument(raw string) {
	f.url, f.argument = text{s: raw, given: true}, true
}

func fromFile(from, path string) (string, string, error) {
	if path == "" {
		return "", "", fmt.Errorf("%s %q: give the path of a file that holds the store's URL", from, path)
	}
	b, err := os.ReadFile(path)
	if err != nil {
		return "", "", fmt.Errorf("%s: %v", from, err)
	}
	return from, strings.TrimSpace(string(b)), nil
}

// checkURL returns the errors in a store's URL that it can find without opening the store.
func checkURL(from, raw string) error {
	schemes := strings.Join(driver.Schemes(), ", ")
	if raw == "" {
		return fmt.Errorf("%s: the URL is empty: give one that begins with one of these schemes: %s", from, schemes)
	}
	u, err := storeurl.Read(raw)
	switch {
	case err != nil:
		return fmt.Errorf("%s: not a URL; special characters in a password are written as %%XX", from)
	case u.Scheme == "":
		return fmt.Errorf("%s: the URL has no scheme: it begins with one of %s; a directory is written file:///absolute/path", from, schemes)
	}
	if err := unescaped(raw); err != nil {
		return fmt.Errorf("%s: %w", from, err)
	}
	if _, ok := driver.OpenerOf(u.Scheme); !ok {
		return fmt.Errorf("%s: unknown scheme %q: it is one of %s", from, u.Scheme, schemes)
	}
	return nil
}

// unescaped refuses a URL that may contain a password with unescaped special characters.
// url.Parse reads a part of such a password as the host, the path or a parameter, and the
// messages of a store quote these.
func unescaped(raw string) error {
	_, rest, _ := strings.Cut(raw, "://")
	end := strings.IndexAny(rest, "/?#")
	switch {
	case strings.Contains(raw, "#"):
		return errors.New("write # as %23, and other special characters in a password as %XX")
	case end > 0 && strings.Contains(rest[end:], "@"):
		return errors.New("an @ follows the host: write special characters in a password as %XX, and an @ anywhere else as %40")
	}
	_, query, _ := strings.Cut(rest, "?")
	for parameter := range strings.SplitSeq(query, "&") {
		if parameter != "" && !strings.Contains(parameter, "=") {
			return errors.New("a parameter has no value: write & in a password as %26, and other special characters as %XX")
		}
	}
	return nil
}
