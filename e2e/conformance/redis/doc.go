// Package redis holds package redisstore to the contract on real servers:
// standalone, with replicas, under Sentinel and in a Cluster, over rueidis and
// over go-redis, and while the servers and the way to them fail.
//
// Servers run as child processes on free ports of the loopback interface. Where
// redis-server is missing the tests are skipped, and fail with
// HOLDFAST_REQUIRE_SERVERS=1.
package redis
