package redisstore

import (
	"strings"

	"github.com/holdfast-go/holdfast/redisstore/internal/server"
)

// A name's key is holdfast:{BUCKET}:NAMESPACE:NAME. The bucket, three hexadecimal digits of a
// hash of namespace and name, is the hash tag. Braces in a name come later and have no effect.
// The namespace is escaped, so that its end is certain; the name is not. The bucket's counter of
// tokens has the key holdfast:{BUCKET}.
const (
	keyPrefix    = "holdfast:{"
	bucketDigits = 3
	// counterLength is the length of the key of a counter, with which the keys of its bucket begin.
	counterLength = len(keyPrefix) + bucketDigits + len("}")
)

type keyspace struct{ namespace string }

func newKeyspace(namespace string) keyspace { return keyspace{server.EscapeNamespace(namespace)} }

// bucket returns the number of the bucket of a name.
func (k keyspace) bucket(name string) uint16 { return server.Bucket(k.namespace, "\x00", name) }

// of returns the keys of a name and of its bucket's counter, and the bucket.
func (k keyspace) of(name string) (key, counter string, bucket uint16) {
	bucket = k.bucket(name)
	digits := digitsOf(bucket)
	key = keyPrefix + string(digits[:]) + "}:" + k.namespace + ":" + name
	return key, key[:counterLength], bucket
}

// digitsOf returns the hexadecimal digits of a bucket.
func digitsOf(bucket uint16) [bucketDigits]byte {
	const hex = "0123456789abcdef"
	return [bucketDigits]byte{hex[bucket>>8&15], hex[bucket>>4&15], hex[bucket&15]}
}

// key returns the key of a name.
func (k keyspace) key(name string) string {
	key, _, _ := k.of(name)
	return key
}

// Key returns the key of a name in a namespace, for operators.
func Key(namespace, name string) string { return newKeyspace(namespace).key(name) }

// nameOf returns the name of a key, or false if the key does not belong to a name of this namespace.
func (k keyspace) nameOf(key string) (string, bool) {
	if len(key) < counterLength || !strings.HasPrefix(key, keyPrefix) {
		return "", false
	}
	name, ok := strings.CutPrefix(key[counterLength:], ":"+k.namespace+":")
	if !ok || name == "" {
		return "", false
	}
	// A key with another bucket than the name's was not made by holdfast.
	if k.key(name) != key {
		return "", false
	}
	return name, true
}

// pattern returns a glob pattern for the keys of the names that begin with prefix.
func (k keyspace) pattern(prefix string) string {
	return keyPrefix + "???}:" + server.EscapeGlob(k.namespace+":"+prefix) + "*"
}

// wakeChannel returns the channel on which one client gets its notifications.
func wakeChannel(client string) string { return "holdfast:wake:" + client }
