package zkstore

import (
	"slices"
	"testing"
)

// TestConfigListsClientAddresses: the lines are those that ZooKeeper writes.
func TestConfigListsClientAddresses(t *testing.T) {
	const config = `server.1=10.0.0.1:2888:3888:participant;10.0.1.1:2181
server.2=zk2.example:2888:3888:observer;0.0.0.0:2182
server.3=[2001:db8::3]:2888:3888:participant;[0:0:0:0:0:0:0:0]:2183
server.4=zk4a:2888:3888|zk4b:2888:3888:participant;[2001:db8::4]:2184
server.5=10.0.0.5:2888:3888:participant
group.1=1:2:3
version=100000003`
	want := []string{"10.0.1.1:2181", "zk2.example:2182", "[2001:db8::3]:2183", "[2001:db8::4]:2184"}
	if got := clientAddresses(config); !slices.Equal(got, want) {
		t.Errorf("the addresses are %q, want %q", got, want)
	}
	if got := clientAddresses(""); got != nil {
		t.Errorf("a single server lists %q", got)
	}
}
