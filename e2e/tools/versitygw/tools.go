//go:build tools

// Package versitygw pins the version of the S3 server that the tests build and run.
package versitygw

import _ "github.com/versity/versitygw/cmd/versitygw"
