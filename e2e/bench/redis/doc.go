// Package redis measures what package redisstore costs: the server's time of each step of a
// contended handover, and the allocations of an uncontended pair. Package bench measures it
// beside its peers.
//
//	go test -run '^$' -bench . ./bench/redis
package redis
