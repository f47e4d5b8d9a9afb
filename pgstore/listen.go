package pgstore

import (
	"context"
	"encoding/hex"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/holdfast-go/holdfast/driver"
)

// listener receives notifications: those of releases for recipe Optimistic, and those of waiters for the other recipes,
// see watches. Clients poll behind a pooler, and in a store over the caller's pool, which has no listener.
type listener struct {
	pg   *pgconn.Config
	last *lastHost
}

// connectTimeout limits one attempt to listen.
const connectTimeout = 5 * time.Second

// Watch implements record.Watcher on one connection.
func (l *listener) Watch(ctx context.Context, changed func(key, id string)) error {
	link, err := l.connect(ctx, channel, func(payload string) {
		data, _ := hex.DecodeString(payload)
		if id, key, ok := strings.Cut(string(data), "\x00"); ok && key != "" {
			changed(key, id)
		}
	})
	if err != nil {
		return err
	}
	defer link.Close()
	changed("", "")
	for err == nil {
		err = link.conn.WaitForNotification(ctx)
	}
	return err
}

// errPooled is the error of a pooler, which passes no notifications.
var errPooled = driver.Errorf(driver.CodeUnsupported, "there is a pooler before the server")

// connect opens a connection that listens to a channel.
func (l *listener) connect(ctx context.Context, channel string, receive func(payload string)) (*pgLink, error) {
	cfg := l.pg.Copy()
	cfg.OnNotification = func(_ *pgconn.PgConn, n *pgconn.Notification) { receive(n.Payload) }
	ctx, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	link, err := dialLink(ctx, cfg, l.last)
	if err != nil {
		return nil, err
	}
	// Behind a pooler the setting and LISTEN below would stay in a backend that other clients use
	// next.
	isDirect, err := direct(ctx, link)
	if err == nil && !isDirect {
		err = errPooled
	}
	if err == nil {
		_, err = link.Run(ctx, "SET idle_session_timeout = 0", "SET tcp_keepalives_idle = 15", "SET tcp_keepalives_interval = 5",
			"SET tcp_keepalives_count = 3", "LISTEN "+channel)
	}
	if err != nil {
		link.Close()
		return nil, err
	}
	return link, nil
}
