package zkstore

import (
	"bufio"
	"context"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/examine"
)

const (
	// usualTTL is the default TTL of a lock.
	usualTTL = 30 * time.Second
	// wordTimeout limits a four-letter word at one server.
	wordTimeout = 3 * time.Second
)

var checks = examine.Table{
	examine.Breaks("version", "ZooKeeper 3.8.5 or later, 3.9.2, or 3.9.4 or later",
		"servers that are killed one after another lose confirmed writes (ZOOKEEPER-4643, ZOOKEEPER-4925): locks behave as after "+
			"a restore, values and ids go back", "upgrade ZooKeeper", func(f examine.Facts) string {
			if strings.HasPrefix(f["version"], "3.9.3") {
				return "version is " + f["version"]
			}
			return examine.Older("version", "3.8.5", "3.9.2")(f)
		}),
	examine.Breaks("tick", "tick= of the URL that is not smaller than the servers' tickTime",
		"a holder may rely on its lock after the servers have ended its session", "give tick= with the servers' tickTime",
		examine.Fewer("tick in ms", "tickTime")),
	examine.Costs("session", "a maxSessionTimeout of 38s or more, with the default tick",
		"locks with the default TTL of 30s get a shorter one, and a longer one is refused", "raise maxSessionTimeout",
		examine.Below("longest TTL in ms", usualTTL.Milliseconds())),
	examine.Costs("silent-server", "servers of the URL that all answer", "the ensemble tolerates one failure less",
		"start the server, or remove it from the URL", examine.Given("silent")),
	examine.Costs("followers", "followers that are all synchronized", "the ensemble tolerates one failure less",
		"start the missing server", examine.Fewer("zk_synced_followers", "followers")),
	examine.Costs("members", "3 or 5 members", "one server tolerates no failure, and an even number no more than one less",
		"add or remove a server", examine.NoMajority("members")),
	examine.Costs("servers", "all members in the URL", "if those of the URL are down, locks are unavailable",
		"name all members in the URL", examine.Fewer("servers in the URL", "members")),
	examine.Unreadable("add the words to 4lw.commands.whitelist; locks do not need them"),
}

// Checks implements driver.Examiner.
func (s *store) Checks() []driver.Check { return checks.Checks() }

// Examine implements driver.Examiner.
func (s *store) Examine(ctx context.Context) ([]driver.Finding, error) {
	longest, err := s.longestTTL(ctx)
	if err != nil {
		return nil, err
	}
	all := []examine.Facts{{"longest TTL in ms": strconv.FormatInt(longest.Milliseconds(), 10)}}
	for _, server := range s.servers {
		f := examine.Facts{examine.Where: server, "servers in the URL": strconv.Itoa(len(s.servers)),
			"tick in ms": strconv.FormatInt(s.cfg.tick.Milliseconds(), 10)}
		if all = append(all, f); s.readWord(ctx, server, "srvr", f) {
			s.readWord(ctx, server, "conf", f)
			if f["Mode"] == "leader" {
				s.readWord(ctx, server, "mntr", f)
			}
		}
		f["version"], _, _ = strings.Cut(f["Zookeeper version"], "-")
		if f["Mode"] == "standalone" {
			f["members"] = "1"
		}
	}
	return checks.Find(all...), nil
}

// readWord adds the answer of a server to a four-letter word to facts. It returns false if the server does not answer.
func (s *store) readWord(ctx context.Context, server, word string, f examine.Facts) bool {
	ctx, cancel := context.WithTimeout(ctx, wordTimeout)
	defer cancel()
	c, err := s.cfg.dialer()(ctx, "tcp", server)
	if err != nil {
		f["silent"] = err.Error()
		return false
	}
	stop := context.AfterFunc(ctx, func() { _ = c.Close() })
	defer func() { stop(); _ = c.Close() }()
	if _, err = io.WriteString(c, word); err != nil {
		f["silent"] = err.Error()
		return false
	}
	lines, members := bufio.NewScanner(c), 0
	for lines.Scan() {
		line := lines.Text()
		if strings.Contains(line, "whitelist") {
			f.AddUnread("%s", word)
		}
		if strings.HasPrefix(line, "server.") {
			members++
		}
		// srvr has "NAME: VALUE", conf "NAME=VALUE" and mntr "NAME\tVALUE".
		if i := strings.IndexAny(line, ":=\t"); i > 0 {
			f[line[:i]] = strings.TrimSpace(line[i+1:])
		}
	}
	if members > 0 {
		f["members"], f["followers"] = strconv.Itoa(members), strconv.Itoa(members-1)
	}
	if err := lines.Err(); err != nil {
		f["silent"] = err.Error()
		return false
	}
	return true
}
