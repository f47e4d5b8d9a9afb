package natsstore

import (
	"context"
	"encoding/json"
	"fmt"
	"iter"
	"maps"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/driver/record"
	"github.com/holdfast-go/holdfast/internal/backoff"
)

const (
	direct   = "$JS.API.DIRECT.GET.KV_"
	again    = 500 * time.Millisecond // after this time without an answer, a read goes to another replica
	maxNames = 64                     // in one read
)

func (b *bucket) subject(key string) string { return "$KV." + b.name + "." + key }

// answer has the last messages of some subjects, and that of the clock under "".
type answer map[string]*nats.Msg

// number returns the number of a subject's last message, or 0 if there is none.
func (a answer) number(subject string) uint64 {
	if a[subject] == nil {
		return 0
	}
	n, _ := strconv.ParseUint(a[subject].Header.Get(nats.JSSequence), 10, 64)
	return n
}

// object returns the record of a subject. A record that was deleted by hand is none.
func (a answer) object(subject string) (o record.Object) {
	o.Now, _ = time.Parse(time.RFC3339Nano, a[""].Header.Get(nats.JSTimeStamp)) // the engine refuses a missing time
	if m := a[subject]; m != nil && m.Header.Get("KV-Operation")+m.Header.Get("Nats-Marker-Reason") == "" {
		o.Data, o.Version = m.Data, m.Header.Get(nats.JSSequence)
	}
	return o
}

// read publishes the clock, and then reads the subjects from a replica that has it.
func (b *bucket) read(subjects []string) (answer, error) {
	ctx, end := b.limit(context.Background())
	defer end()
	clock := b.subject("clock")
	least, err := b.publish(ctx, clock, nil)
	if err != nil {
		return nil, err
	}
	request, _ := json.Marshal(map[string][]string{"multi_last": append([]string{clock}, subjects...)})
	for pause := time.Millisecond; ; pause *= 2 {
		a, err := b.ask(ctx, request, max(again, pause))
		if err != nil {
			return nil, b.coded(ctx, err, driver.CodeUnavailable, direct+b.name)
		}
		if a.number(clock) >= least {
			a[""] = a[clock]
			return a, nil
		}
		_ = backoff.Sleep(ctx, pause) // the replica lags, or none has answered
	}
}

// ask reads from any replica. The answer is empty if none has answered after brief.
func (b *bucket) ask(ctx context.Context, request []byte, brief time.Duration) (answer, error) {
	reply := b.nc.NewInbox()
	sub, err := b.nc.SubscribeSync(reply)
	if err != nil {
		return nil, err
	}
	defer func() { _ = sub.Unsubscribe() }()
	if err := b.nc.PublishRequest(direct+b.name, reply, request); err != nil {
		return nil, err
	}
	once, end := context.WithTimeout(ctx, brief)
	defer end()
	for a := (answer{}); ; {
		m, err := sub.NextMsgWithContext(once)
		if err != nil && ctx.Err() == nil && once.Err() != nil {
			return nil, nil
		} else if err != nil {
			return nil, err
		}
		switch status := m.Header.Get("Status"); {
		case status == "":
			a[m.Header.Get(nats.JSSubject)] = m
		case status == "204" && m.Header.Get("Nats-Num-Pending") == "0":
			return a, nil
		case status == "408":
			return nil, driver.Errorf(driver.CodeRefused, "nats: the server refuses a read: it needs version 2.11 or later")
		default:
			return nil, fmt.Errorf("a read has the answer %s %s", status, m.Header.Get("Description"))
		}
	}
}

// Get implements [record.Storage].
func (b *bucket) Get(ctx context.Context, key string) (record.Object, error) {
	subject := b.subject(encode(key))
	a, err := b.reads.Do(ctx, subject)
	if err != nil {
		return record.Object{}, err
	}
	return a.object(subject), nil
}

// Put implements [record.Storage].
func (b *bucket) Put(ctx context.Context, key string, data []byte, version string) (string, error) {
	last, _ := strconv.ParseUint(version, 10, 64)
	if version != "" && (last == 0 || strconv.FormatUint(last, 10) != version) {
		return "", driver.Conflict(key)
	}
	subject := b.subject(encode(key))
	n, err := b.publish(ctx, subject, data, jetstream.WithExpectLastSequencePerSubject(last))
	if version == "" && driver.CodeOf(err) == driver.CodeConflict {
		a, failed := b.reads.Do(ctx, subject)
		if failed != nil {
			return "", driver.Errorf(driver.CodeUnknown, "nats: a read after a conflict: %w", failed)
		}
		if a[subject] != nil && a.object(subject).Version == "" { // deleted by hand
			n, err = b.publish(ctx, subject, data, jetstream.WithExpectLastSequencePerSubject(a.number(subject)))
		}
	}
	return strconv.FormatUint(n, 10), err
}

// List implements [record.Storage].
func (b *bucket) List(ctx context.Context, prefix string) iter.Seq2[record.Entry, error] {
	return func(yield func(record.Entry, error) bool) {
		all, err := b.subjects(ctx, prefix)
		for some := range slices.Chunk(all, maxNames) {
			var a answer
			if a, err = b.reads.Do(ctx, some...); err != nil {
				break
			}
			for _, subject := range some {
				e := record.Entry{Key: decode(strings.TrimPrefix(subject, b.subject(""))), Object: a.object(subject)}
				if e.Version != "" && strings.HasPrefix(e.Key, prefix) && !yield(e, nil) {
					return
				}
			}
		}
		if err != nil {
			yield(record.Entry{}, err)
		}
	}
}

// subjects returns the subjects of the records whose keys begin with prefix, and of some others. The prefix contains a
// NUL, which separates the namespace from the name. A read publishes the clock first. So a leader whose stream is shorter
// than that is a former one.
func (b *bucket) subjects(ctx context.Context, prefix string) ([]string, error) {
	a, err := b.reads.Do(ctx)
	if err != nil {
		return nil, err
	}
	filter := b.subject(encode(prefix[:strings.LastIndexByte(prefix, 0)]) + ".>")
	info, err := b.info(ctx, jetstream.WithSubjectFilter(filter))
	if err != nil {
		return nil, err
	}
	if info.State.LastSeq < a.number("") {
		return nil, driver.Errorf(driver.CodeUnavailable, "nats: a former leader has listed the bucket")
	}
	return slices.Collect(maps.Keys(info.State.Subjects)), nil
}

// Watch implements [record.Watcher]. It ends with the connection.
func (b *bucket) Watch(ctx context.Context, changed func(key, id string)) error {
	link := b.link.Load()
	sub, err := b.nc.Subscribe(b.wakes, func(m *nats.Msg) {
		if id, key, ok := strings.Cut(string(m.Data), "\x00"); ok && key != "" {
			changed(key, id)
		}
	})
	if err != nil {
		return err
	}
	defer func() { _ = sub.Unsubscribe() }()
	begin, end := b.limit(ctx)
	defer end()
	if err := b.nc.FlushWithContext(begin); err != nil {
		return err
	}
	changed("", "")
	select {
	case <-link.Done():
		return context.Cause(link)
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Wake implements [record.Waker].
func (b *bucket) Wake(key, id string) { _ = b.nc.Publish(b.wakes, []byte(id+"\x00"+key)) }

// Close implements [record.Storage].
func (b *bucket) Close() error {
	b.unlinked(nats.ErrConnectionClosed)
	b.nc.Close()
	b.reads.Wait()
	return nil
}

// A key of the engine is a key of the bucket: a dot and _ stand for NUL, and = and two digits for a byte that a
// bucket does not allow.
var (
	fromKey = strings.NewReplacer("%00", "._", ".", "=2E", "~", "=7E", "+", "=20", "%", "=")
	toKey   = strings.NewReplacer("._", "%00", "=", "%")
)

func encode(key string) string { return fromKey.Replace(url.QueryEscape(key)) }

// decode returns "" for a key that no client has encoded.
func decode(key string) string {
	key, _ = url.QueryUnescape(toKey.Replace(key))
	return key
}
