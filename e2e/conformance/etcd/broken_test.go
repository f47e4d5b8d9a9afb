package etcd

import (
	"context"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/e2e/conformance/requests"
	"github.com/holdfast-go/holdfast/internal/servers"
)

// corrupt gives the only entry of a name another value, and returns a function that deletes the entry.
func corrupt(t testing.TB, client *clientv3.Client, namespace, name, value string) (remove func()) {
	t.Helper()
	prefix := name + "/"
	if namespace != "" {
		prefix = "_holdfast/ns/" + namespace + "/" + prefix
	}
	resp, err := client.Get(t.Context(), prefix, clientv3.WithPrefix())
	if err != nil || len(resp.Kvs) != 1 {
		t.Fatalf("the entries of %q: %v, %v", name, resp, err)
	}
	key := string(resp.Kvs[0].Key)
	_, err = client.Put(t.Context(), key, value, clientv3.WithIgnoreLease())
	check(t, err)
	return func() {
		if _, err := client.Delete(context.WithoutCancel(t.Context()), key); err != nil {
			t.Error(err)
		}
	}
}

// TestRecordWithoutALeaseGrantsNothing: another client has put a record, and its key has no lease. It would stay
// forever, so a request is refused, and List shows the name with an error.
func TestRecordWithoutALeaseGrantsNothing(t *testing.T) {
	c := start(t, servers.EtcdConfig{})
	s := c.open(t)
	_, err := c.direct(t).Put(t.Context(), "leaseless/1", `{"holdfast":1,"limit":1,"id":"x"}`)
	check(t, err)
	requests.Code(t, s, submit(t, s, request("leaseless", driver.Exclusive, time.Minute)).Ended(), driver.CodeRefused)
	var names []string
	for st, err := range s.List(t.Context(), "") {
		if err != nil || st.Err == nil {
			t.Errorf("%+v, %v", st, err)
		}
		names = append(names, st.Name)
	}
	if len(names) != 1 || names[0] != "leaseless" {
		t.Errorf("List: %q", names)
	}
}
