//go:build linux || darwin

package check

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"sync"

	"golang.org/x/sys/unix"
)

// machineTime returns the time in nanoseconds since the machine started. All processes of the
// machine share this clock, and no program can set it.
func machineTime() int64 {
	var ts unix.Timespec
	if err := unix.ClockGettime(machineClock, &ts); err != nil {
		panic("check: the machine's clock cannot be read: " + err.Error())
	}
	return ts.Nano()
}

// historyLog writes a history. It writes each event as one line in one write, so that a killed
// process loses at most its last line.
type historyLog struct {
	now func() int64 // the time of the events
	// keep, if not nil, gets the events in place of the file.
	keep   func(Event)
	mu     sync.Mutex
	f      *os.File
	worker string
	buf    bytes.Buffer
	enc    *json.Encoder
	err    error
}

// newLog begins a history in a new file. Events without a worker get worker.
func newLog(path, worker string) (*historyLog, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, err
	}
	l := &historyLog{now: machineTime, f: f, worker: worker}
	l.enc = json.NewEncoder(&l.buf)
	l.enc.SetEscapeHTML(false)
	return l, nil
}

// Add writes an event. An event without a time gets the current time.
func (l *historyLog) Add(e Event) {
	if e.T == 0 {
		e.T = l.now()
	}
	if e.W == "" {
		e.W = l.worker
	}
	if l.keep != nil {
		l.keep(e)
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.buf.Reset()
	err := l.enc.Encode(&e)
	if err == nil {
		_, err = l.f.Write(l.buf.Bytes())
	}
	l.err = cmp.Or(l.err, err)
}

// addAll writes many events at once and closes the file.
func (l *historyLog) addAll(events []Event) error {
	w := bufio.NewWriterSize(l.f, 1<<16)
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	for i := range events {
		if err := enc.Encode(&events[i]); err != nil {
			return err
		}
	}
	return cmp.Or(w.Flush(), l.Close())
}

// Close closes the file and returns the first error of any write.
func (l *historyLog) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return cmp.Or(l.err, l.f.Close())
}

// readHistory reads a history. It skips a last line that a kill has cut off. Any other line that is
// not an event is an error.
func readHistory(r io.Reader) ([]Event, error) {
	var events []Event
	br := bufio.NewReaderSize(r, 1<<16)
	for line := 1; ; line++ {
		text, err := br.ReadBytes('\n')
		if errors.Is(err, io.EOF) {
			return events, nil // the last line was cut off
		}
		if err != nil {
			return nil, err
		}
		var e Event
		if err := json.Unmarshal(text, &e); err != nil {
			return nil, fmt.Errorf("line %d is not an event: %w", line, err)
		}
		events = append(events, e)
	}
}

// ReadFiles reads several histories into one, in order of time.
func ReadFiles(paths ...string) ([]Event, error) {
	var all []Event
	for _, path := range paths {
		f, err := os.Open(path)
		if err != nil {
			return nil, err
		}
		events, err := readHistory(f)
		f.Close()
		if err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		all = append(all, events...)
	}
	sortEvents(all)
	return all, nil
}

// sortEvents sorts events by time. Events of one moment keep their order: within one worker
// that is the order of writing.
func sortEvents(all []Event) {
	slices.SortStableFunc(all, func(a, b Event) int { return cmp.Compare(a.T, b.T) })
}
