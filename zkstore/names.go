package zkstore

import (
	"strings"
	"unicode/utf8"
)

// A name is one node below the root, with its own spelling if that can be a node's name. Other
// bytes are escaped as %XX. A namespace is a node whose name begins with '@', and the node "@"
// itself is the parent of the sessions' guards. So a leading '@' of a name is escaped.
const (
	namespaceMark = "@"
	guardDir      = "@"
)

const hexDigits = "0123456789ABCDEF"

// escape returns the node name of a name. Different names have different node names.
func escape(name string) string {
	reserved := name == "." || name == ".." || name == "zookeeper" // not allowed, or the server's own
	var b strings.Builder
	for i := 0; i < len(name); {
		r, n := utf8.DecodeRuneInString(name[i:])
		if allowed(r) && !(i == 0 && (r == '@' || reserved)) {
			b.WriteString(name[i : i+n])
		} else {
			for _, c := range []byte(name[i : i+n]) {
				b.Write([]byte{'%', hexDigits[c>>4], hexDigits[c&15]})
			}
		}
		i += n
	}
	return b.String()
}

// allowed reports whether a character may stand in a node's name. It excludes what ZooKeeper
// refuses in a path, what it encodes in its own way (beyond the basic plane), and the escape
// character.
func allowed(r rune) bool {
	switch {
	case r == '/' || r == '%' || r == utf8.RuneError:
		return false
	case r >= 0x20 && r <= 0x7e, r >= 0xa0 && r <= 0xd7ff, r >= 0xf900 && r <= 0xffef:
		return true
	}
	return false
}

// unescape is the inverse of escape. It returns false for other node names.
func unescape(node string) (string, bool) {
	var b strings.Builder
	for i := 0; i < len(node); i++ {
		if node[i] != '%' {
			b.WriteByte(node[i])
			continue
		}
		if i+2 >= len(node) {
			return "", false
		}
		hi, lo := strings.IndexByte(hexDigits, node[i+1]), strings.IndexByte(hexDigits, node[i+2])
		if hi < 0 || lo < 0 {
			return "", false
		}
		b.WriteByte(byte(hi<<4 | lo))
		i += 2
	}
	name := b.String()
	return name, escape(name) == node
}

// checkChroot returns what is wrong with the path of a root, "" if nothing. The empty path is
// the server's own root.
func checkChroot(path string) string {
	if path == "" {
		return ""
	}
	if path[0] != '/' {
		return "it does not begin with a slash"
	}
	for part := range strings.SplitSeq(path[1:], "/") {
		switch {
		case part == "":
			return "it has an empty part"
		case part == "." || part == "..":
			return "it has a part " + part
		}
		for _, r := range part {
			if r != '%' && !allowed(r) {
				return "ZooKeeper does not allow every character in it"
			}
		}
	}
	if path == "/zookeeper" || strings.HasPrefix(path, "/zookeeper/") {
		return "/zookeeper is the server's own"
	}
	return ""
}
