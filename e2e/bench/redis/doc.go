// Package redis measures what package redisstore costs: the server's time of each step from
// one holder of a contended name to the next, and the allocations of an uncontended pair. Package bench compares the
// store with its peers.
//
//	go test -run '^$' -bench . ./bench/redis
package redis
