//go:build !linux

package servers

import "errors"

func stallThreads(int, string) (func(), error) {
	return nil, errors.New("servers: threads of a server can be stopped on Linux alone")
}
