//go:build linux || darwin

package servers

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
)

// S3 is a server of S3: versitygw, which keeps objects in files, or else SeaweedFS.
type S3 struct {
	*Server
	// Address is the server's HOST:PORT.
	Address string
	// Root is the directory of the bucket locks, "" on SeaweedFS.
	Root string
}

// S3ID and S3Secret are the credentials of the server's administrator.
const S3ID, S3Secret = "holdfast", "not-secret"

// StartS3 starts a server with an empty bucket locks in dir. Settings are further arguments.
func StartS3(ctx context.Context, dir string, settings ...string) (*S3, error) {
	program, err := Find("versitygw")
	if err != nil {
		weed, werr := Find("weed")
		if werr != nil {
			return nil, err
		}
		return retryIn(ctx, dir, func(dir string) (*S3, error) { return startSeaweedFS(ctx, weed, dir) })
	}
	return retryIn(ctx, dir, func(dir string) (*S3, error) {
		port, err := FreePort()
		if err != nil {
			return nil, err
		}
		s := &S3{Address: fmt.Sprintf("127.0.0.1:%d", port), Root: filepath.Join(dir, "buckets", "locks")}
		if err := os.MkdirAll(s.Root, 0o700); err != nil {
			return nil, err
		}
		args := []string{program, "--port", s.Address, "--access", S3ID, "--secret", S3Secret, "--quiet", "--keep-alive"}
		args = append(append(args, settings...), "posix", "buckets")
		s.Server, err = Start(ctx, Config{Name: "versitygw", Dir: dir, Command: args, Ready: Dial(s.Address)})
		return s, err
	})
}

// startSeaweedFS starts all parts of SeaweedFS in one process. Without identities it accepts each signature.
func startSeaweedFS(ctx context.Context, program, dir string) (*S3, error) {
	parts := []string{"master", "volume", "filer", "s3"}
	ports, err := freePorts(2 * len(parts))
	if err != nil {
		return nil, err
	}
	args := []string{program, "server", "-filer", "-s3", "-dir=.", "-ip=127.0.0.1", "-ip.bind=127.0.0.1", "-master.volumeSizeLimitMB=64"}
	for i, part := range parts {
		args = append(args, fmt.Sprintf("-%s.port=%d", part, ports[2*i]), fmt.Sprintf("-%s.port.grpc=%d", part, ports[2*i+1]))
	}
	s := &S3{Address: fmt.Sprintf("127.0.0.1:%d", ports[len(ports)-2])}
	s.Server, err = Start(ctx, Config{Name: "seaweedfs", Dir: dir, Command: args,
		Ready: Serves(http.MethodPut, "http://"+s.Address+"/locks", http.StatusOK, http.StatusConflict)})
	return s, err
}

// S3URL returns the URL of locks in the bucket of a server at an address.
func S3URL(address string) string {
	return "s3://" + S3ID + ":" + S3Secret + "@locks?skew=0s&endpoint=" + url.QueryEscape("http://"+address)
}
