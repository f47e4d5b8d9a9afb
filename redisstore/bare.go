package redisstore

import (
	"net/url"

	"github.com/redis/rueidis"
)

// BareClient returns a rueidis client with the settings that Open uses, for benchmarks.
func BareClient(rawURL string) (rueidis.Client, error) {
	u, err := url.Parse(rawURL)
	if err != nil {
		return nil, err
	}
	o, mode, _, err := parseURL(u)
	if err != nil {
		return nil, err
	}
	return rueidis.NewClient(newRueidis(o, mode, redacted(u)).option)
}
