// Package redis measures the costs of package redisstore. It reports the server's time for
// each step from one holder of a contended name to the next, and the allocations of a lock
// and unlock of a free name. Package bench compares the store with its peers.
//
//	go test -run '^$' -bench . ./bench/redis
package redis
