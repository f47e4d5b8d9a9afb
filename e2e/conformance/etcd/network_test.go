package etcd

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync/atomic"
)

// network is a small network within this machine: each host is a network namespace, and this
// process reaches all of them. Unlike a proxy it can separate the members of a cluster while
// their clients stay connected. It needs root and the ip command.
type network struct {
	bridge string
	names  []string
	hosts  []string
}

// errNoNetwork is the error if this process cannot make network namespaces.
var errNoNetwork = errors.New("network namespaces need root and the ip command")

var networks atomic.Int32

// newNetwork makes a network of hosts.
func newNetwork(hosts int) (*network, error) {
	if os.Getuid() != 0 {
		return nil, errNoNetwork
	}
	if _, err := exec.LookPath("ip"); err != nil {
		return nil, errNoNetwork
	}
	n := int(networks.Add(1))
	// If another process has the same names and addresses, the next step fails.
	id := fmt.Sprintf("%x%x", os.Getpid(), n)
	subnet := fmt.Sprintf("10.213.%d", (os.Getpid()*7+n)%250)
	w := &network{bridge: "hfb" + id}
	err := ip("link", "add", w.bridge, "type", "bridge")
	if err != nil {
		return nil, err
	}
	run := func(args ...string) {
		if err == nil {
			err = ip(args...)
		}
	}
	run("addr", "add", subnet+".1/24", "dev", w.bridge)
	run("link", "set", w.bridge, "up")
	for i := range hosts {
		name, link, host := fmt.Sprintf("hfn%s-%d", id, i), fmt.Sprintf("hfv%s%d", id, i), fmt.Sprintf("%s.%d", subnet, 10+i)
		run("netns", "add", name)
		if err != nil {
			break
		}
		w.names, w.hosts = append(w.names, name), append(w.hosts, host)
		run("link", "add", link, "type", "veth", "peer", "name", "eth0", "netns", name)
		run("link", "set", link, "master", w.bridge, "up")
		run("-n", name, "addr", "add", host+"/24", "dev", "eth0")
		run("-n", name, "link", "set", "eth0", "up")
		run("-n", name, "link", "set", "lo", "up")
	}
	if err != nil {
		w.close()
		return nil, err
	}
	return w, nil
}

func ip(args ...string) error {
	out, err := exec.Command("ip", args...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("ip %s: %w: %s", strings.Join(args, " "), err, strings.TrimSpace(string(out)))
	}
	return nil
}

// addresses returns the hosts' addresses.
func (w *network) addresses() []string { return w.hosts }

// enter returns the command that runs another command on a host.
func (w *network) enter(host int) []string { return []string{"ip", "netns", "exec", w.names[host]} }

// cut separates a host from all others, in both directions, until heal. This process still
// reaches it.
func (w *network) cut(host int) error { return w.others(host, "add") }

// heal ends cut.
func (w *network) heal(host int) error { return w.others(host, "del") }

func (w *network) others(host int, do string) error {
	for i, h := range w.hosts {
		if i == host {
			continue
		}
		// The host has no route for its answers either, so connections of the others to it also
		// fail.
		if err := ip("-n", w.names[host], "route", do, "blackhole", h+"/32"); err != nil {
			return err
		}
	}
	return nil
}

// close ends the network. A process on a host keeps its namespace, without a link.
func (w *network) close() {
	for _, name := range w.names {
		_ = ip("netns", "del", name)
	}
	_ = ip("link", "del", w.bridge)
}
