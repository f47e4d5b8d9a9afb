// Package redis measures package redisstore beside its peers, on one server and
// in one run: each contender has a turn of a second, again and again, so that
// what else the machine does falls on all of them.
//
//	go test -run '^$' -bench . ./bench/redis
package redis
