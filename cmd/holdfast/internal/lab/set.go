//go:build linux || darwin

package lab

import (
	"os"
	"path/filepath"
	"slices"
	"sync"
)

// Set has the servers of stories. The first story that needs a kind of server starts it,
// and it runs until Close. The stories share the servers, so the caller plays the stories of
// one set one after the other.
type Set struct {
	mu      sync.Mutex
	dir     string
	started map[string]any // the servers, by kind
	stops   []func()       // end the servers, in the order of their starts
}

// NewSet returns a set without servers. Their files are in a temporary directory.
func NewSet() (*Set, error) {
	dir, err := os.MkdirTemp("", "hf-story")
	return &Set{dir: dir, started: map[string]any{}}, err
}

// Close ends all servers and removes their files.
func (s *Set) Close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, stop := range slices.Backward(s.stops) {
		stop()
	}
	_ = os.RemoveAll(s.dir)
}

// sharedServer returns the server of a kind, and starts the server if it does not run. start
// receives the path of a directory for this kind. Close calls end.
func sharedServer[S any](s *stage, kind string, start func(dir string) (S, error), end func(S)) S {
	s.set.mu.Lock()
	defer s.set.mu.Unlock()
	if v, ok := s.set.started[kind]; ok {
		return v.(S)
	}
	v, err := start(filepath.Join(s.set.dir, kind))
	s.must(err)
	s.set.started[kind], s.set.stops = v, append(s.set.stops, func() { end(v) })
	return v
}

// scratch returns an empty directory for one play. If that fails, it ends the play.
func (s *Set) scratch(play *stage) string {
	dir, err := os.MkdirTemp(s.dir, "")
	play.must(err)
	return dir
}
