package natsstore

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/holdfast-go/holdfast/driver"
)

// Init creates the bucket, with the replicas of the URL and in files, or checks the one that exists.
func (s *Store) Init(ctx context.Context) error {
	b := s.bucket
	ctx, end := b.limit(ctx)
	defer end()
	_, err := b.js.CreateKeyValue(ctx, jetstream.KeyValueConfig{Bucket: b.name, Replicas: b.replicas})
	if err != nil && !errors.Is(err, jetstream.ErrBucketExists) {
		return b.coded(ctx, err, driver.CodeUnavailable, "$JS.API.")
	}
	return b.check(ctx)
}

// info returns the bucket's settings and state, from its leader.
func (b *bucket) info(ctx context.Context, o ...jetstream.StreamInfoOpt) (info *jetstream.StreamInfo, err error) {
	ctx, end := b.limit(ctx)
	defer end()
	stream, err := b.js.Stream(ctx, "KV_"+b.name)
	if err == nil {
		info, err = stream.Info(ctx, o...)
	}
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		return nil, driver.Errorf(driver.CodeRefused, "nats: bucket %s does not exist: holdfast init creates it", b.name)
	} else if err != nil {
		return nil, b.coded(ctx, err, driver.CodeUnavailable, "$JS.API.STREAM.INFO.KV_"+b.name)
	}
	return info, nil
}

// check refuses a bucket that may lose or remove records, once for each connection.
func (b *bucket) check(ctx context.Context) error {
	link := b.link.Load()
	if link.checked.Load() {
		return nil
	}
	info, err := b.info(ctx)
	if err != nil {
		return err
	}
	c := info.Config
	limited := c.MaxMsgs > 0 || c.MaxBytes > 0
	for why, is := range map[string]bool{
		fmt.Sprintf("%d replicas, and the URL asks for %d", c.Replicas, b.replicas): c.Replicas < b.replicas,
		"storage in memory":                          c.Storage != jetstream.FileStorage,
		"a persist mode that acknowledges too early": c.PersistMode != jetstream.DefaultPersistMode,
		"a TTL, which removes records":               c.MaxAge != 0,
		"another history than 1":                     c.MaxMsgsPerSubject != 1 || c.DiscardNewPerSubject,
		"a limit that removes old records":           limited && c.Discard != jetstream.DiscardNew,
		"a retention that removes records":           c.Retention != jetstream.LimitsPolicy,
		"records of another stream":                  c.Mirror != nil || len(c.Sources) > 0 || c.SubjectTransform != nil,
		"no acknowledged writes":                     c.Sealed || c.NoAck,
		"no direct reads":                            !c.AllowDirect,
		"other subjects than a bucket":               !slices.Contains(c.Subjects, b.subject(">")),
	} {
		if is {
			return driver.Errorf(driver.CodeRefused, "nats: bucket %s has %s", b.name, why)
		}
	}
	link.checked.Store(true)
	return nil
}
