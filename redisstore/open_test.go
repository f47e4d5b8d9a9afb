package redisstore

import (
	"context"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/must"
	"github.com/holdfast-go/holdfast/redisstore/layouts"
)

func TestOpenRefusesLayouts(t *testing.T) {
	for url, says := range map[string]string{
		"redis://h?layout=plain": `layout "plain": open it by layouts.Open`,
		"redis://h?fair_wait=1m": "only the layout redisson-fair has a fair lock",
	} {
		if _, err := Open(t.Context(), url); driver.CodeOf(err) != driver.CodeInvalid || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v, want %q", url, err, says)
		}
	}
}

func TestStoreOverClientRefusesFairWait(t *testing.T) {
	c := redis.NewClient(&redis.Options{})
	defer c.Close()
	if _, err := New(c, layouts.FairWait(time.Minute)); driver.CodeOf(err) != driver.CodeInvalid || !strings.Contains(err.Error(), "1m0s") {
		t.Errorf("New: %v, want the refused fair wait", err)
	}
}

func TestRegisteredURLOpensLayouts(t *testing.T) {
	for raw, layout := range map[string]bool{"redis://h": false, "redis://u:p%2Bw@h?layout=redisson": true} {
		u, err := url.Parse(raw)
		must.Succeed(t, err)
		s, err := openURL(t.Context(), u, "ns")
		if err != nil {
			t.Fatalf("%s: %v", raw, err)
		}
		if _, ok := s.(*layouts.Store); ok != layout {
			t.Errorf("%s opens a %T", raw, s)
		}
		must.Report(t, s.Close(context.Background()))
	}
	u, _ := url.Parse("redis://h?layout=redison")
	if s, err := openURL(t.Context(), u, ""); s != nil || driver.CodeOf(err) != driver.CodeInvalid {
		t.Errorf("an unknown layout: %v, %v", s, err)
	}
}
