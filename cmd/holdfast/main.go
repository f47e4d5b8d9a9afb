// Holdfast runs a command while it holds a lock. It also shows and breaks the locks of a store.
// See `holdfast help`.
package main

import (
	"os"

	_ "github.com/holdfast-go/holdfast/etcdstore"
	_ "github.com/holdfast-go/holdfast/filestore"
	_ "github.com/holdfast-go/holdfast/memstore"
	_ "github.com/holdfast-go/holdfast/mysqlstore"
	_ "github.com/holdfast-go/holdfast/natsstore"
	_ "github.com/holdfast-go/holdfast/pgstore"
	_ "github.com/holdfast-go/holdfast/redisstore"
	_ "github.com/holdfast-go/holdfast/redisstore/redlock"
	_ "github.com/holdfast-go/holdfast/s3store"
	_ "github.com/holdfast-go/holdfast/sqlitestore"
	_ "github.com/holdfast-go/holdfast/zkstore"

	"github.com/redis/go-redis/v9/logging"

	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/cli"
)

func main() {
	logging.Disable() // go-redis would log each lost connection
	os.Exit(cli.Main(os.Args[1:]))
}
