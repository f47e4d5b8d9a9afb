package filestore

// changes reports nothing on this system: the callers poll.
func (s *Store) changes(*bucket) (c <-chan struct{}, stop func()) { return nil, func() {} }
