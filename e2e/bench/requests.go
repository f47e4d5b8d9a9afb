package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"hash/fnv"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/redis/rueidis"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
	"go.uber.org/zap"
)

// The contenders of this file make the requests that holdfast makes for a lock of a free name and its release, by the
// client library of the server, and do nothing else. They show how much of a pair is the price of the requests.

// bareRequests returns such a contender.
func bareRequests(name string, open func(address string) (client, error)) contender {
	return contender{name: "the bare requests" + name, bare: true, open: open}
}

// bareOwner is as long as what holdfast writes about an owner.
const bareOwner = "h2xzmaqerlngiht7-1 host 12345 1795915706585165 "

// These scripts make the calls of holdfast's.
var (
	bareLock = rueidis.NewLuaScript(`
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
if redis.call('HLEN', KEYS[1]) > 0 then return redis.error_reply('ERR held') end
local token = string.format('%.0f', now)
redis.call('SET', KEYS[2], token, 'GET')
redis.call('HSET', KEYS[1], 's0', ARGV[1] .. token)
redis.call('PEXPIRE', KEYS[1], ARGV[2])
return token`)
	bareUnlock = rueidis.NewLuaScript(`
local found = redis.call('HMGET', KEYS[1], 's0', 'm', 's0')
if not found[1] or not string.find(found[1], ARGV[1], 1, true) then return redis.error_reply('ERR not held') end
return redis.call('HDEL', KEYS[1], 's0')`)
)

func openRedisRequests(address string) (client, error) {
	c, err := newRueidis(address)
	if err != nil {
		return client{}, err
	}
	millis := fmt.Sprint(ttl.Milliseconds())
	return client{close: c.Close, lock: func(ctx context.Context, name string) (uint64, func() error, error) {
		key := "bare:{" + name + "}"
		err := bareLock.Exec(ctx, c, []string{key, key + "token"}, []string{bareOwner, millis}).Error()
		return 0, func() error {
			return bareUnlock.Exec(context.Background(), c, []string{key}, []string{bareOwner}).Error()
		}, err
	}}, nil
}

func openEtcdRequests(address string) (client, error) {
	c, err := clientv3.New(clientv3.Config{Endpoints: []string{address}, Logger: zap.NewNop()})
	if err != nil {
		return client{}, err
	}
	s, err := concurrency.NewSession(c) // keeps a lease
	if err != nil {
		return client{}, errors.Join(err, c.Close())
	}
	txn := func(ctx context.Context, then clientv3.Op, conditions ...clientv3.Cmp) (int64, error) {
		answer, err := c.Txn(clientv3.WithRequireLeader(ctx)).If(conditions...).Then(then).Commit()
		if err != nil {
			return 0, err
		}
		if !answer.Succeeded {
			return 0, errors.New("a condition of the transaction failed")
		}
		return answer.Header.Revision, nil
	}
	return client{close: func() { _ = s.Close(); _ = c.Close() }, lock: func(ctx context.Context, name string) (uint64, func() error, error) {
		entries := "/bare/" + name + "/"
		key := entries + "1"
		revision, err := txn(ctx, clientv3.OpPut(key, bareOwner, clientv3.WithLease(s.Lease())),
			clientv3.Compare(clientv3.ModRevision("/epoch/"+name), "=", 0),
			clientv3.Compare(clientv3.ModRevision(entries).WithPrefix(), "<", 1),
			clientv3.Compare(clientv3.CreateRevision(key), "=", 0))
		return 0, func() error {
			_, err := txn(context.Background(), clientv3.OpDelete(key), clientv3.Compare(clientv3.CreateRevision(key), "=", revision))
			return err
		}, err
	}}, nil
}

// The statements of a pair: those of a request that does not wait, and those of its release. NAME is the name, and KEY
// a number for it.
var (
	bareNamed = [2]string{
		"SELECT IF(IS_FREE_LOCK('gate:NAME'), GET_LOCK('bare:NAME', 0), 0), TIMESTAMPDIFF(MICROSECOND, '1970-01-01', SYSDATE(6)), CONNECTION_ID(), @@global.read_only",
		"SELECT RELEASE_LOCK('bare:NAME'), 1",
	}
	bareMariaRow = [2]string{
		"START TRANSACTION;SELECT name, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', SYSDATE(6)), CONNECTION_ID(), @@global.read_only FROM by_hand WHERE name = 'NAME' FOR UPDATE SKIP LOCKED;SAVEPOINT hf_lock",
		"ROLLBACK TO SAVEPOINT hf_lock;ROLLBACK;SELECT CONNECTION_ID(), 1",
	}
	// $1 is KEY.
	bareAdvisory = [2]string{
		"SELECT CASE WHEN pg_try_advisory_lock($1::bigint) THEN (extract(epoch FROM clock_timestamp()) * 1000000)::bigint END, pg_backend_pid()",
		"SELECT pg_advisory_unlock($1::bigint)",
	}
	barePgRow = [2]string{
		"BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE;" +
			"SELECT set_config('holdfast.gate', CASE WHEN pg_try_advisory_lock_shared(KEY) THEN 'yes' END, true);" +
			"WITH l AS MATERIALIZED (SELECT name FROM by_hand WHERE name = 'NAME' FOR UPDATE SKIP LOCKED), " +
			"t AS MATERIALIZED (SELECT l.name, CASE WHEN pg_advisory_xact_lock_shared(7)::text IS NOT NULL THEN (extract(epoch FROM clock_timestamp()) * 1000000)::bigint END AS token FROM l) " +
			"SELECT name, token, pg_backend_pid(), set_config('application_name', 'hf ' || token, false), set_config('idle_in_transaction_session_timeout', '30000', false) FROM t;" +
			"SELECT CASE WHEN current_setting('holdfast.gate', true) = 'yes' THEN pg_advisory_unlock_shared(KEY) END",
		"ROLLBACK;SELECT pg_backend_pid()",
	}
)

// bareKey returns a number for a name.
func bareKey(name string) int64 {
	h := fnv.New32()
	h.Write([]byte(name))
	return int64(h.Sum32())
}

// barePair returns the functions of pooled that run the statements of a pair.
func barePair[C any](statements [2]string, run func(ctx context.Context, c C, statement string, key int64) error) func(context.Context, C, string) (func() error, error) {
	return func(_ context.Context, c C, name string) (func() error, error) {
		ctx, key := context.Background(), bareKey(name)
		fill := strings.NewReplacer("NAME", name, "KEY", fmt.Sprint(key))
		return func() error { return run(ctx, c, fill.Replace(statements[1]), key) }, run(ctx, c, fill.Replace(statements[0]), key)
	}
}

func openMariaDBRequests(statements [2]string) func(address string) (client, error) {
	return func(address string) (client, error) {
		db, err := sql.Open("mysql", "root@tcp("+address+")/test?multiStatements=true")
		if err != nil {
			return client{}, err
		}
		return pooled(func() (*sql.Conn, error) { return db.Conn(context.Background()) }, func(c *sql.Conn) { _ = c.Close() },
			barePair(statements, func(ctx context.Context, c *sql.Conn, statement string, _ int64) error {
				rows, err := c.QueryContext(ctx, statement)
				if err != nil {
					return err
				}
				defer rows.Close()
				for more := true; more; more = rows.NextResultSet() {
					columns, err := rows.Columns()
					if err != nil {
						return err
					}
					if len(columns) == 0 {
						continue
					}
					row := make([]any, len(columns))
					for i := range row {
						row[i] = new(sql.RawBytes)
					}
					if !rows.Next() {
						return errors.Join(errNotTaken, rows.Err())
					}
					if err := rows.Scan(row...); err != nil {
						return err
					}
					if first := *row[0].(*sql.RawBytes); len(first) == 0 || string(first) == "0" {
						return errNotTaken
					}
				}
				return rows.Err()
			})), nil
	}
}

// errNotTaken is the error of a statement that has not locked or freed anything.
var errNotTaken = errors.New("a statement of the bare requests has locked or freed nothing")

func openPostgresRequests(statements [2]string) func(address string) (client, error) {
	return func(address string) (client, error) {
		return pgPooled(address, barePair(statements, func(ctx context.Context, c *pgx.Conn, statement string, key int64) error {
			results := []*pgconn.Result{{}}
			var err error
			if strings.Contains(statement, "$1") {
				rows, qerr := c.Query(ctx, statement, key)
				if qerr != nil {
					return qerr
				}
				for rows.Next() {
					results[0].Rows = append(results[0].Rows, rows.RawValues())
				}
				results[0].FieldDescriptions, err = rows.FieldDescriptions(), rows.Err()
			} else {
				results, err = c.PgConn().Exec(ctx, statement).ReadAll()
			}
			for _, r := range results {
				if err == nil && len(r.FieldDescriptions) > 0 && (len(r.Rows) == 0 || r.Rows[0][0] == nil || string(r.Rows[0][0]) == "\x00") {
					err = errNotTaken
				}
			}
			return err
		}))
	}
}

// openFileRequests opens a client that replaces a record in a file of the name, under flock, once for a lock and once for
// its release.
func openFileRequests(dir string) (client, error) {
	var files sync.Map
	record := []byte(strings.Repeat(bareOwner, 5))
	replace := func(f *os.File) error {
		fd, page := int(f.Fd()), make([]byte, os.Getpagesize())
		if err := syscall.Flock(fd, syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
			return err
		}
		var st syscall.Stat_t
		err := syscall.Stat(f.Name(), &st)
		_, rerr := syscall.Pread(fd, page, 0)
		_, werr := syscall.Pwrite(fd, record, 0)
		return errors.Join(err, rerr, werr, syscall.Flock(fd, syscall.LOCK_UN))
	}
	end := func() {
		files.Range(func(_, f any) bool { _ = f.(*os.File).Close(); return true })
	}
	return client{close: end, lock: func(_ context.Context, name string) (uint64, func() error, error) {
		f, known := files.Load(name)
		if !known {
			opened, err := os.OpenFile(filepath.Join(dir, "bare-"+name), os.O_CREATE|os.O_RDWR, 0o600)
			if err != nil {
				return 0, nil, err
			}
			f = opened
			files.Store(name, f)
		}
		return 0, func() error { return replace(f.(*os.File)) }, replace(f.(*os.File))
	}}, nil
}
