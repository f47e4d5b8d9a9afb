package etcdstore

import (
	clientv3 "go.etcd.io/etcd/client/v3"
)

// Standing is a condition for a transaction of the user's own on the same
// cluster: it holds only while the grant of the name that carries the token
// stands. With it, what is kept in etcd itself needs no other fence:
//
//	standing, err := store.Standing("billing", lock.Token())
//	...
//	resp, err := client.Txn(ctx).If(standing).Then(clientv3.OpPut("total", "42")).Commit()
//
// A response that did not succeed means that the lock has been lost. The grant
// has to be one of this store; otherwise the error's code is CodeNotHeld.
func (s *Store) Standing(name string, token uint64) (clientv3.Cmp, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, a := range s.attempts {
		if a.r.Name == name && uint64(a.rev.Load()) == token && a.granted.Load() {
			return clientv3.Compare(clientv3.CreateRevision(a.key), "=", int64(token)), nil
		}
	}
	return clientv3.Cmp{}, errNotHeld
}
