//go:build tools

// Package etcd pins the version of etcd that the tests build and run.
package etcd

import (
	_ "go.etcd.io/etcd/etcdctl/v3"
	_ "go.etcd.io/etcd/server/v3"
)
