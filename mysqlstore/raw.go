package mysqlstore

import (
	"net/url"

	"github.com/holdfast-go/holdfast/driver"
)

// parseRaw never quotes what it was given: it may hold a password.
func parseRaw(raw string) (*url.URL, error) {
	u, err := url.Parse(raw)
	if err != nil || u.Scheme != "mysql" && u.Scheme != "mariadb" {
		return nil, driver.Errorf(driver.Invalid, "mysqlstore: not a URL of scheme mysql or mariadb; special characters in a password are written as %%XX")
	}
	return u, nil
}
