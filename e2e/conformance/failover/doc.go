// Package failover explores package redisstore over a failover. The store and its scripts are the real ones. The
// servers are a model: they run the scripts in an interpreter of Lua.
package failover
