//go:build linux || darwin

package filestore_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"go.uber.org/goleak"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/filestore"
	"github.com/holdfast-go/holdfast/internal/must"
)

// attacker is a user of the machine without rights.
const attacker = 4711

// asRoot skips a test that needs two users.
func asRoot(t testing.TB) {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("only root can run a program as another user")
	}
}

// publicDir returns a temporary directory that every user may read, and no other user may write.
func publicDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "hf")
	if err == nil {
		err = os.Chmod(dir, 0o755)
	}
	if err == nil {
		dir, err = filepath.EvalSymlinks(dir) // /tmp is a link on macOS
	}
	must.Succeed(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

func asAttacker(cmd *exec.Cmd) *exec.Cmd {
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: attacker, Gid: attacker}}
	return cmd
}

// attack runs a script in a directory as the attacker.
func attack(t testing.TB, dir, script string) error {
	t.Helper()
	cmd := asAttacker(exec.Command("/bin/sh", "-ec", script))
	cmd.Dir = dir
	out, err := cmd.CombinedOutput()
	if err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	return nil
}

func mustAttack(t testing.TB, dir, script string) {
	t.Helper()
	if err := attack(t, dir, script); err != nil {
		t.Fatalf("the attack itself failed: %v", err)
	}
}

// secretText must not be in any error.
const secretText = "the secret of another user\n"

// session is a name like that of a session.
const session = "abcdefghijkl2345"

// secretDir makes a private directory of root with files like those of a store.
func secretDir(t testing.TB, parent string) string {
	t.Helper()
	dir := filepath.Join(parent, "secret")
	for _, sub := range []string{"", "sessions", "buckets", "values"} {
		must.Succeed(t, os.Mkdir(filepath.Join(dir, sub), 0o700))
	}
	for _, name := range []string{"file", "format", session, session + ".sock", "sessions/" + session, "buckets/00"} {
		must.Succeed(t, os.WriteFile(filepath.Join(dir, name), []byte(secretText), 0o600))
	}
	return dir
}

// tree describes all files below a directory.
func tree(t testing.TB, dir string) map[string]string {
	t.Helper()
	files := map[string]string{}
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		var content []byte
		if info.Mode().IsRegular() {
			content, err = os.ReadFile(path)
		}
		files[path] = fmt.Sprintf("%v %q", info.Mode(), content)
		return err
	})
	must.Succeed(t, err)
	return files
}

// useStore calls all methods of a store on a directory that another user has changed. It returns the
// texts of the errors.
func useStore(t testing.TB, s *filestore.Store) (says string) {
	t.Helper()
	ctx := testContext(t)
	add := func(err error) {
		if err != nil {
			says += err.Error() + "\n"
		}
	}
	for i := range 8 {
		r := request(fmt.Sprint("n", i), driver.Exclusive)
		g, err := s.Acquire(ctx, r)
		if add(err); err == nil {
			add(s.Release(ctx, g, 0))
		}
	}
	for st, err := range s.List(ctx, "") {
		add(errors.Join(err, st.Err))
	}
	_, version, err := s.Get(ctx, "k")
	add(err)
	_, err = s.Put(ctx, "k", []byte("data"), version)
	add(err)
	return says
}

// TestOtherUserCannotLeadTheStoreOutside lets the user to whom a shared directory belongs replace its
// parts, before and after root has opened it. Root's private files stay as they are, and no error shows
// their content.
func TestOtherUserCannotLeadTheStoreOutside(t *testing.T) {
	asRoot(t)
	const each = `for i in 0 1 2 3 4 5 6 7 8 9 a b c d e f; do for j in 0 1 2 3 4 5 6 7 8 9 a b c d e f; do `
	for name, script := range map[string]string{
		"buckets is a link":     `rm -rf buckets; ln -s ../secret buckets`,
		"sessions is a link":    `rm -rf sessions; ln -s ../secret sessions`,
		"sessions is a path":    `rm -rf sessions; ln -s ../secret/sessions sessions`,
		"values is a link":      `rm -rf values; ln -s ../secret values`,
		"format is a link":      `rm -f format; ln -s ../secret/file format`,
		"bucket files are link": `mkdir -p buckets; cd buckets; ` + each + `ln -sf ../../secret/file $i$j; done; done`,
		"new buckets are link":  `mkdir -p buckets; cd buckets; ` + each + `ln -sf ../../secret/new $i$j; done; done`,
		"lock of values":        `mkdir -p values; ln -sf ../../secret/file values/lock`,
		"values are links":      `mkdir -p values; for f in values/*; do ln -sf ../../secret/file $f; done`,
		"sockets are links":     `mkdir -p sessions; cd sessions; for f in *; do ln -sf ../../secret/file $f.sock; done`,
		"a session is a link":   `mkdir -p sessions; ln -s ../../secret/` + session + ` sessions/` + session,
		"the directory":         `cd ..; rm -rf locks; ln -s secret locks`,
	} {
		for _, when := range []string{"before", "after"} {
			t.Run(name+"/"+when, func(t *testing.T) {
				t.Parallel()
				base := publicDir(t)
				secret := secretDir(t, base)
				dir := filepath.Join(base, "locks")
				must.Succeed(t, os.Mkdir(dir, 0o777))
				must.Succeed(t, errors.Join(os.Chown(base, attacker, attacker), os.Chown(dir, attacker, attacker), os.Chmod(dir, 0o777|fs.ModeSticky)))
				before := tree(t, secret)
				var says string
				if when == "before" {
					mustAttack(t, dir, script)
				}
				s, err := filestore.Open(testContext(t), dir, filestore.Mode(0o777))
				if err != nil {
					says = err.Error()
				} else {
					t.Cleanup(func() { s.Close(context.Background()) })
					if when == "after" {
						useStore(t, s)
						mustAttack(t, dir, script)
					}
					says = useStore(t, s)
					other, err := filestore.Open(testContext(t), dir, filestore.Mode(0o777))
					if err == nil {
						says += useStore(t, other)
						other.Close(testContext(t))
					}
					s.Close(testContext(t))
				}
				if after := tree(t, secret); !maps.Equal(before, after) {
					t.Errorf("the private directory was\n%v\nand is\n%v", before, after)
				}
				if strings.Contains(says, strings.TrimSpace(secretText)) {
					t.Errorf("an error shows a private file: %s", says)
				}
			})
		}
	}
}

// TestHardLinksAreRefused gives a private file a second name among the store's files. The store
// neither changes the file nor shows its content.
func TestHardLinksAreRefused(t *testing.T) {
	for _, name := range []string{"buckets", "values", "values/lock"} {
		dir, secret := tempDir(t), filepath.Join(tempDir(t), "file")
		must.Succeed(t, os.WriteFile(secret, nil, 0o600)) // an empty file looks like a new bucket
		before := tree(t, filepath.Dir(secret))
		s := open(t, dir, filestore.Mode(0o777))
		useStore(t, s)
		path := filepath.Join(dir, name)
		files := []string{path}
		if info, err := os.Stat(path); err != nil {
			t.Fatal(err)
		} else if info.IsDir() {
			files, _ = filepath.Glob(filepath.Join(path, "*"))
		}
		for _, f := range files {
			must.Succeed(t, errors.Join(os.Remove(f), os.Link(secret, f)))
		}
		if says := useStore(t, s); !strings.Contains(says, files[0]) || !strings.Contains(says, "second name") {
			t.Errorf("%s: the errors do not name %s: %s", name, files[0], says)
		}
		if after := tree(t, filepath.Dir(secret)); !maps.Equal(before, after) {
			t.Errorf("%s: the linked file was %v and is %v", name, before, after)
		}
	}
}

// TestDirectoryOfAttackerIsRefused: in a directory where every user may create files, another user has
// created the store's directory first, or one above it, or a link.
func TestDirectoryOfAttackerIsRefused(t *testing.T) {
	asRoot(t)
	for script, dir := range map[string]string{
		"mkdir -m 1777 locks":                   "locks",
		"mkdir -m 755 app app/locks":            "app/locks",
		"mkdir -m 755 app":                      "app/locks",
		"ln -s " + "../secret" + " locks":       "locks",
		"mkdir app; ln -s ../../secret app/own": "app/own/locks",
	} {
		base := publicDir(t)
		secret := secretDir(t, base)
		before := tree(t, secret)
		tmp := filepath.Join(base, "tmp")
		must.Succeed(t, errors.Join(os.Mkdir(tmp, 0o777), os.Chmod(tmp, 0o777|fs.ModeSticky)))
		mustAttack(t, tmp, script)
		for _, mode := range []fs.FileMode{0o700, 0o770, 0o777} {
			s, err := filestore.Open(testContext(t), filepath.Join(tmp, dir), filestore.Mode(mode))
			if err == nil {
				useStore(t, s)
				s.Close(testContext(t))
			}
			if driver.CodeOf(err) != driver.CodeRefused || !strings.Contains(err.Error(), fmt.Sprint("user ", attacker)) {
				t.Errorf("%s, mode %o: %v", script, mode, err)
			}
		}
		if after := tree(t, secret); !maps.Equal(before, after) {
			t.Errorf("%s: the private directory was %v and is %v", script, before, after)
		}
	}
}

// TestHomeOfAnotherUserIsRefused: sudo may keep the HOME of its caller. Root then creates
// nothing there, and uses nothing of that user.
func TestHomeOfAnotherUserIsRefused(t *testing.T) {
	asRoot(t)
	for _, script := range []string{"true", "mkdir -p .local/state/holdfast", "mkdir .local; ln -s ../../secret .local/state",
		"mkdir -p Library; ln -s ../../secret 'Library/Application Support'"} {
		base := publicDir(t)
		secretDir(t, base)
		home := filepath.Join(base, "home")
		must.Succeed(t, errors.Join(os.Mkdir(home, 0o755), os.Chown(home, attacker, attacker)))
		mustAttack(t, home, script)
		t.Setenv("HOME", home)
		t.Setenv("XDG_STATE_HOME", "")
		before := tree(t, base)
		s, err := filestore.Open(testContext(t), "file:")
		if err == nil {
			s.Close(testContext(t))
		}
		if driver.CodeOf(err) != driver.CodeRefused || !strings.Contains(err.Error(), fmt.Sprint("user ", attacker)) {
			t.Errorf("%s: %v", script, err)
		}
		if after := tree(t, base); !maps.Equal(before, after) {
			t.Errorf("%s: the home was %v and is %v", script, before, after)
		}
	}
}

// TestSharedDirectoryIsSticky: no user of a shared directory can replace what another user has created
// at its top. A directory of another user that is not sticky is refused.
func TestSharedDirectoryIsSticky(t *testing.T) {
	asRoot(t)
	base := publicDir(t)
	made := filepath.Join(base, "made")
	given := filepath.Join(base, "given")
	must.Succeed(t, errors.Join(os.Mkdir(given, 0o777), os.Chmod(given, 0o777)))
	for _, dir := range []string{made, given} {
		take(t, open(t, dir, filestore.Mode(0o777)), "a", driver.Exclusive)
		for _, script := range []string{"mv buckets other", "mv sessions other", "rm format", "rmdir values"} {
			if err := attack(t, dir, script); err == nil {
				t.Errorf("%s: another user can %s", dir, script)
			}
		}
	}
	must.Succeed(t, errors.Join(os.Chmod(given, 0o777), os.Chown(given, attacker, attacker)))
	_, err := filestore.Open(testContext(t), given, filestore.Mode(0o777))
	if driver.CodeOf(err) != driver.CodeRefused || !strings.Contains(err.Error(), "chmod +t "+given) {
		t.Errorf("%v", err)
	}
}

// TestUsersShareADirectory: processes of two users exclude and notify each other.
func TestUsersShareADirectory(t *testing.T) {
	asRoot(t)
	base := publicDir(t)
	binary := filepath.Join(base, "test")
	self, err := os.Executable()
	must.Succeed(t, err)
	from, err := os.Open(self)
	must.Succeed(t, err)
	defer from.Close()
	to, err := os.OpenFile(binary, os.O_WRONLY|os.O_CREATE, 0o755)
	must.Succeed(t, err)
	if _, err := io.Copy(to, from); err != nil {
		t.Fatal(err)
	}
	must.Succeed(t, to.Close())
	dir := filepath.Join(base, "locks")
	s := open(t, dir, filestore.Mode(0o777))
	c := startCommand(t, asAttacker(exec.Command(binary)), "hold", dir+"?mode=0777", "a")
	c.says("granted")
	_, err = s.Acquire(testContext(t), request("a", driver.Exclusive))
	wantCode(t, s, err, driver.CodeBusy)
	p := silent(t, s, "a", driver.Exclusive)
	next := startCommand(t, asAttacker(exec.Command(binary)), "hold", dir+"?mode=0777", "a")
	next.says("queued")
	c.finish()
	release(t, s, p.granted(t))
	next.says("granted")
	p = silent(t, s, "a", driver.Exclusive)
	next.kill()
	p.granted(t)
}

// TestFIFODelaysNothing: FIFOs and links take the names of sessions, sockets and buckets. No call waits for
// their other end.
func TestFIFODelaysNothing(t *testing.T) {
	ignored := goleak.IgnoreCurrent()
	dir := tempDir(t)
	s := open(t, dir)
	bucket := s.BucketPath("a")
	for _, path := range []string{bucket, filepath.Join(dir, "sessions", session), filepath.Join(dir, "sessions", "3bcdefghijkl2345.sock")} {
		must.Succeed(t, syscall.Mkfifo(path, 0o666))
	}
	g := take(t, s, otherName(t, s, bucket), driver.Exclusive)
	_, err := s.Acquire(testContext(t), request("a", driver.Exclusive))
	wantCode(t, s, err, driver.CodeRefused)
	if !strings.Contains(err.Error(), bucket) {
		t.Errorf("%v does not name %s", err, bucket)
	}
	release(t, s, g)
	s.Close(testContext(t))
	goleak.VerifyNone(t, ignored) // a goroutine that waits for a FIFO outlives Close
}

// otherName returns a name whose bucket is another file.
func otherName(t testing.TB, s *filestore.Store, bucket string) string {
	t.Helper()
	for i := range 1000 {
		if name := fmt.Sprint("other", i); s.BucketPath(name) != bucket {
			return name
		}
	}
	t.Fatal("all names have one bucket")
	return ""
}

// TestSocketReplacedByALinkIsNotUsed puts a link to another program's socket in the place of a session's.
// The store neither connects to that socket nor changes its mode.
func TestSocketReplacedByALinkIsNotUsed(t *testing.T) {
	dir := tempDir(t)
	a, b := open(t, dir), open(t, dir)
	take(t, a, "a", driver.Exclusive)
	private := filepath.Join(tempDir(t), "private.sock")
	ln, err := net.Listen("unix", private)
	must.Succeed(t, err)
	defer ln.Close()
	socket := a.SessionPath() + ".sock"
	for _, link := range []func(old, new string) error{os.Symlink, os.Link} {
		must.Succeed(t, errors.Join(os.Chmod(private, 0o700), os.Remove(socket), link(private, socket)))
		if b.Dial(a) {
			t.Error("connected to another program's socket")
		}
		a.SetSocketMode()
		if info, err := os.Stat(private); err != nil || info.Mode().Perm() != 0o700 {
			t.Errorf("another program's socket is now %v, %v", info.Mode(), err)
		}
	}
}

// TestSecondHolderInTheFileIsNotBelieved writes a grant for a waiter beside the holder's grant. The
// waiter gets an error, and the holder learns that its lock is no longer safe.
func TestSecondHolderInTheFileIsNotBelieved(t *testing.T) {
	dir := tempDir(t)
	a, b := open(t, dir), open(t, dir)
	r := request("a", driver.Exclusive)
	if _, err := a.Acquire(testContext(t), r); err != nil {
		t.Fatal(err)
	}
	p := queue(t, b, "a", driver.Exclusive)
	must.Succeed(t, b.ForgeGrant("a", p.r.ID))
	err := p.ended(t)
	wantCode(t, b, err, driver.CodeRefused)
	if !strings.Contains(err.Error(), b.BucketPath("a")) {
		t.Errorf("%v does not name the file", err)
	}
	wantLost(t, r.From, driver.CauseGone)
}

// TestDamagedFileIsRefused damages a bucket in several ways. The holder learns that its lock is no longer
// safe. Every request gets an error that names the file, List reports it beside the other names, and
// nothing changes the file. After its removal the names are free.
func TestDamagedFileIsRefused(t *testing.T) {
	for name, harm := range map[string]func(page []byte){
		"header":  func(page []byte) { page[20]++ },
		"list":    func(page []byte) { page[130]++ },
		"text":    func(page []byte) { copy(page, "another file") },
		"session": func(page []byte) { filestore.ForgeSession(page, "../outside") },
		"counter": func(page []byte) { filestore.ForgeCounter(page, driver.MaxToken-1<<20) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := tempDir(t)
			s := open(t, dir)
			path := s.BucketPath("a")
			r := request("a", driver.Exclusive)
			g, err := s.Acquire(testContext(t), r)
			must.Succeed(t, err)
			other := otherName(t, s, path)
			take(t, s, other, driver.Exclusive)
			p := queue(t, s, "a", driver.Exclusive)
			page, err := os.ReadFile(path)
			must.Succeed(t, err)
			harm(page)
			must.Succeed(t, os.WriteFile(path, page, 0o600))
			names := func(err error) {
				t.Helper()
				if wantCode(t, s, err, driver.CodeRefused); !strings.Contains(err.Error(), path) {
					t.Errorf("%v does not name %s", err, path)
				}
			}
			if name == "counter" { // the list is whole
				release(t, s, g)
				p.cancel()
				p.ended(t)
			} else {
				wantLost(t, r.From, driver.CauseGone)
				names(p.ended(t))
				_, err = s.Inspect(testContext(t), "a")
				names(err)
				var all []driver.State
				for st, err := range s.List(testContext(t), "") {
					must.Succeed(t, err)
					all = append(all, st)
				}
				if len(all) != 2 || all[0].Name != "" || all[1].Name != other || len(all[1].Holders) != 1 {
					t.Fatalf("%+v", all)
				}
				names(all[0].Err)
				if now, err := os.ReadFile(path); err != nil || string(now) != string(page) {
					t.Errorf("the file was changed: %v", err)
				}
			}
			_, err = s.Acquire(testContext(t), request("a", driver.Exclusive))
			names(err)
			must.Succeed(t, os.Remove(path))
			if h := take(t, s, "a", driver.Exclusive); h.Token <= g.Token {
				t.Errorf("token %d after %d", h.Token, g.Token)
			}
		})
	}
}

// TestDeadSessionsAreNamesOfSessions: files in the directory of the sessions that are not named like
// sessions are left alone.
func TestDeadSessionsAreNamesOfSessions(t *testing.T) {
	dir := tempDir(t)
	s := open(t, dir)
	stay := []string{"UPPERCASEABCDEFG", "sixteen-letters-", "abcdefghijkl2345x", "ABCDEFGHIJKL2345.sock"}
	for _, name := range append(stay, session) {
		must.Succeed(t, os.WriteFile(filepath.Join(dir, "sessions", name), nil, 0o600))
	}
	take(t, s, "a", driver.Exclusive)
	eventually(t, "the dead session's file is removed", func() bool {
		_, err := os.Lstat(filepath.Join(dir, "sessions", session))
		return errors.Is(err, fs.ErrNotExist)
	})
	s.Close(testContext(t))
	for _, name := range stay {
		if _, err := os.Lstat(filepath.Join(dir, "sessions", name)); err != nil {
			t.Error(err)
		}
	}
}

// TestStoreStartsNoProgram: whatever the files contain, the package has no means to run it.
func TestStoreStartsNoProgram(t *testing.T) {
	files, err := filepath.Glob("*.go")
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	for _, f := range files {
		source, err := os.ReadFile(f)
		must.Succeed(t, err)
		for _, means := range []string{`"os/exec"`, `"plugin"`, ".Exec(", ".ForkExec(", ".StartProcess("} {
			if !strings.HasSuffix(f, "_test.go") && strings.Contains(string(source), means) {
				t.Errorf("%s has %s", f, means)
			}
		}
	}
}
