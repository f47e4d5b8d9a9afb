// Package transport tests on every store which servers a client trusts with its password and its requests, and
// what it says if it does not.
package transport
