package server

import "strings"

// Buckets is the number of buckets. Names of one bucket share the high-water mark of their tokens.
const Buckets = 1 << 12

// Bucket returns the number of the bucket of a name, of which parts are the text.
func Bucket(parts ...string) uint16 {
	n := uint64(fnvOffset)
	for _, part := range parts {
		n = fnv1a(n, part)
	}
	n ^= n >> 32
	n ^= n >> 16
	return uint16(n % Buckets)
}

// The parameters of the 64-bit FNV-1a hash.
const (
	fnvOffset = 14695981039346656037
	fnvPrime  = 1099511628211
)

// fnv1a is hash/fnv's New64a without an allocation: it continues the hash n with text.
func fnv1a(n uint64, text string) uint64 {
	for i := range len(text) {
		n = (n ^ uint64(text[i])) * fnvPrime
	}
	return n
}

// EscapeNamespace returns a namespace as a part of a key, without a colon.
var EscapeNamespace = strings.NewReplacer("%", "%25", ":", "%3A").Replace

// EscapeGlob returns a glob pattern that matches only this text.
var EscapeGlob = strings.NewReplacer(`\`, `\\`, "*", `\*`, "?", `\?`, "[", `\[`, "]", `\]`, "^", `\^`).Replace

// HashTag returns the part of a key that decides its hash slot.
func HashTag(key string) string {
	if _, after, ok := strings.Cut(key, "{"); ok {
		if tag, _, ok := strings.Cut(after, "}"); ok && tag != "" {
			return tag
		}
	}
	return key
}
