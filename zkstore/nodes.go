package zkstore

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/holdfast-go/holdfast/driver"
)

// The parts of a node's name that show what it is. The two of the read/write lock have the
// same length.
const (
	markRead  = "__READ__"
	markWrite = "__WRIT__"
	markMutex = "lock-"
	markLease = "lease-"
	// Curator treats a permit as a writer: its readers and writers wait for it. The limit of a
	// permit precedes the mark of a writer: "-sem3-__WRIT__".
	markPermit = "sem"
)

// node is a child that belongs to the recipe.
type node struct {
	name  string
	seq   int32
	limit int
}

// prefixLen is the length of the prefix of protected: "_c_", a UUID and "-". Curator's prefix has the
// same length.
const prefixLen = 40

// protected returns the prefix of the names of a request's nodes, like Curator's "protection". With
// this prefix a client finds its node after a create without an answer. The prefix depends only on
// the request's ID, so that every client can find the node.
func protected(id string) string {
	h := sha256.Sum256([]byte("holdfast " + id))
	h[6] = h[6]&0x0f | 0x80 // version 8: custom
	h[8] = h[8]&0x3f | 0x80
	x := hex.EncodeToString(h[:16])
	return "_c_" + x[:8] + "-" + x[8:12] + "-" + x[12:16] + "-" + x[16:20] + "-" + x[20:] + "-"
}

// isProtected reports whether a node's name has a prefix of protected. Curator uses random UUIDs, of version
// 4, and go-zookeeper 32 digits.
func isProtected(name string) bool {
	const mark = len("_c_00000000-0000")
	return len(name) > prefixLen && strings.HasPrefix(name, "_c_") && name[mark:mark+2] == "-8"
}

// sameRequest reports whether two nodes of a semaphore belong to the same request.
func sameRequest(a, b string) bool {
	return len(a) >= prefixLen && strings.HasPrefix(b, a[:prefixLen])
}

// sequence parses the number that the server has appended after the last mark: an int32
// printed with ten characters or more.
func sequence(name, mark string) (int32, bool) {
	i := strings.LastIndex(name, mark)
	if i < 0 {
		return 0, false
	}
	digits := name[i+len(mark):]
	n, err := strconv.ParseInt(digits, 10, 32)
	switch {
	case err != nil || len(digits) < 10:
		return int32(n), false
	case len(digits) == 10 && digits[0] >= '0':
		return int32(n), true // the common case without allocation: every node of a queue is parsed at each read
	}
	return int32(n), fmt.Sprintf("%010d", n) == digits
}

// readWriteNode parses a child of the native layout.
func readWriteNode(name string) (node, bool) {
	if seq, ok := sequence(name, markRead); ok {
		return node{name, seq, driver.Unlimited}, true
	}
	seq, ok := sequence(name, markWrite)
	if !ok {
		return node{}, false
	}
	n := node{name, seq, driver.Exclusive}
	head := strings.TrimSuffix(name[:strings.LastIndex(name, markWrite)], "-")
	if i := strings.LastIndex(head, "-"+markPermit); i >= 0 {
		if limit, err := strconv.Atoi(head[i+1+len(markPermit):]); err == nil && limit > 1 && limit <= driver.MaxLimit {
			n.limit = limit
		}
	}
	return n, true
}

func mutexNode(name string) (node, bool) {
	seq, ok := sequence(name, markMutex)
	return node{name, seq, driver.Exclusive}, ok
}

// nodesOf returns the children that belong to the recipe, in the order of their creation.
func nodesOf(children []string, read func(string) (node, bool)) []node {
	all := make([]node, 0, len(children))
	for _, c := range children {
		if n, ok := read(c); ok {
			all = append(all, n)
		}
	}
	sortNodes(all)
	return all
}

// sortNodes sorts by sequence number, an int32 that wraps. Nodes that exist together are far less
// than half its range apart, so a precedes b if the wrapped difference a-b is negative. This is the
// order of their czxids, and needs no read. If two nodes have equal numbers, Curator has downgraded
// a writer to a reader: the writer was first.
func sortNodes(all []node) {
	slices.SortFunc(all, func(a, b node) int {
		if a.seq != b.seq {
			if d := a.seq - b.seq; d < 0 { // the difference wraps on purpose
				return -1
			}
			return 1
		}
		if (a.limit == driver.Unlimited) != (b.limit == driver.Unlimited) {
			if b.limit == driver.Unlimited {
				return -1
			}
			return 1
		}
		return strings.Compare(a.name, b.name)
	})
}

func indexOf(all []node, name string) int {
	return slices.IndexFunc(all, func(n node) bool { return n.name == name })
}

// countGrants returns how many of the nodes, in order, are grants. An entry becomes a grant when all
// entries before it are grants and the rule allows it beside them. The smallest limit never rises
// along the queue, so the grants are the first nodes of the queue.
func countGrants(all []node) int {
	least := math.MaxInt
	for i, n := range all {
		if least = min(least, n.limit); i >= least {
			return i
		}
	}
	return len(all)
}

// toWatch returns the nodes that the waiter at index i watches. While all of them exist, the waiter
// cannot get its grant. This is true of k nodes before i if one of them, or the waiter, has a limit
// of k or less. toWatch returns the smallest such set, of the nearest nodes, so that a release wakes
// as few waiters as possible. An exclusive entry watches its predecessor, a shared entry the nearest
// writer, and a permit of n the n nearest nodes.
func toWatch(all []node, i int) []node {
	var best []node
	consider := func(set []node) {
		if best == nil || len(set) < len(best) {
			best = set
		}
	}
	if own := all[i].limit; own <= i {
		consider(all[i-own : i])
	}
	for j := i - 1; j >= 0 && (best == nil || len(best) > 1); j-- {
		limit := all[j].limit
		if limit > i {
			continue
		}
		set := []node{all[j]}
		for k := i - 1; k >= 0 && len(set) < limit; k-- {
			if k != j {
				set = append(set, all[k])
			}
		}
		consider(set)
	}
	return best
}
