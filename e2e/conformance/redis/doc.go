// Package redis tests package redisstore on real servers: standalone, with
// replicas, under Sentinel and in a Cluster. The tests let servers and
// connections fail.
//
// Servers run as child processes on free ports of the loopback interface. If
// redis-server is missing, the tests are skipped. With
// HOLDFAST_REQUIRE_SERVERS=1 they fail.
package redis
