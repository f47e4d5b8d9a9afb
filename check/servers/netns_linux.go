package servers

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync/atomic"
)

// Network is a small network of this machine alone: each host is a network
// namespace, and this process reaches them all. It is for what a proxy cannot do:
// to part the members of a cluster while their clients stay connected. It needs
// root and the ip command.
type Network struct {
	bridge string
	names  []string
	hosts  []string
}

// ErrNoNetwork: this process may not make network namespaces.
var ErrNoNetwork = errors.New("servers: network namespaces need root and the ip command")

var networks atomic.Int32

// NewNetwork makes a network of so many hosts.
func NewNetwork(hosts int) (*Network, error) {
	if os.Getuid() != 0 {
		return nil, ErrNoNetwork
	}
	if _, err := exec.LookPath("ip"); err != nil {
		return nil, ErrNoNetwork
	}
	n := int(networks.Add(1))
	// Names and addresses that are another process's make the next step fail.
	id := fmt.Sprintf("%x%x", os.Getpid(), n)
	subnet := fmt.Sprintf("10.213.%d", (os.Getpid()*7+n)%250)
	w := &Network{bridge: "hfb" + id}
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
		w.Close()
		return nil, err
	}
	return w, nil
}

func ip(args ...string) error {
	out, err := exec.Command("ip", args...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("servers: ip %s: %w: %s", strings.Join(args, " "), err, strings.TrimSpace(string(out)))
	}
	return nil
}

// Hosts are the hosts' addresses.
func (w *Network) Hosts() []string { return w.hosts }

// Enter is the command that runs another on a host.
func (w *Network) Enter(host int) []string { return []string{"ip", "netns", "exec", w.names[host]} }

// Cut parts a host from all others, both ways, until Heal. This process still
// reaches it.
func (w *Network) Cut(host int) error { return w.others(host, "add") }

// Heal ends Cut.
func (w *Network) Heal(host int) error { return w.others(host, "del") }

func (w *Network) others(host int, do string) error {
	for i, h := range w.hosts {
		if i == host {
			continue
		}
		// What is not answered is not received either.
		if err := ip("-n", w.names[host], "route", do, "blackhole", h+"/32"); err != nil {
			return err
		}
	}
	return nil
}

// Close ends the network. Whoever still runs on a host keeps its namespace, which
// has lost its link.
func (w *Network) Close() {
	for _, name := range w.names {
		_ = ip("netns", "del", name)
	}
	_ = ip("link", "del", w.bridge)
}
