package redisstore

import (
	"net/url"

	"github.com/redis/rueidis"
)

// BareClient is a rueidis client with the settings that Open uses, to measure
// against.
func BareClient(rawURL string) (rueidis.Client, error) {
	u, err := url.Parse(rawURL)
	if err != nil {
		return nil, err
	}
	o, mode, _, err := parseURL(u)
	if err != nil {
		return nil, err
	}
	return rueidis.NewClient(newRueidis(o, mode, place(u)).option)
}
