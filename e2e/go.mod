module github.com/holdfast-go/holdfast/e2e

go 1.26.0

require (
	github.com/go-zookeeper/zk v1.0.4
	github.com/holdfast-go/holdfast v0.1.0
	github.com/holdfast-go/holdfast/check v0.1.0
	github.com/holdfast-go/holdfast/cmd/holdfast v0.1.0
	github.com/holdfast-go/holdfast/etcdstore v0.1.0
	github.com/holdfast-go/holdfast/zkstore v0.1.0
	go.etcd.io/etcd/api/v3 v3.7.3
	go.etcd.io/etcd/client/v3 v3.7.3
	go.uber.org/zap v1.28.0
	google.golang.org/grpc v1.85.0
	google.golang.org/protobuf v1.36.12
	github.com/bsm/redislock v0.9.4
	github.com/go-redsync/redsync/v4 v4.18.1
	github.com/gofrs/flock v0.13.1
	github.com/johannesboyne/gofakes3 v1.2.0
	github.com/holdfast-go/holdfast/redisstore v0.1.0
	github.com/holdfast-go/holdfast/redisstore/goredis v0.1.0
	github.com/redis/go-redis/v9 v9.23.0
	github.com/redis/rueidis v1.0.79
)

require (
	github.com/cespare/xxhash/v2 v2.3.0 // indirect
	github.com/coreos/go-semver v0.3.1 // indirect
	github.com/coreos/go-systemd/v22 v22.7.0 // indirect
	github.com/golang/protobuf v1.5.4 // indirect
	github.com/grpc-ecosystem/grpc-gateway/v2 v2.29.0 // indirect
	go.etcd.io/etcd/client/pkg/v3 v3.7.3 // indirect
	go.uber.org/goleak v1.3.0 // indirect
	go.uber.org/multierr v1.11.0 // indirect
	golang.org/x/net v0.61.0 // indirect
	google.golang.org/genproto/googleapis/api v0.0.0-20260817212433-ac3dfec99bb1 // indirect
	google.golang.org/genproto/googleapis/rpc v0.0.0-20260817212433-ac3dfec99bb1 // indirect
	go.uber.org/atomic v1.12.0 // indirect
	pgregory.net/rapid v1.3.0 // indirect
)

require (
	filippo.io/edwards25519 v1.2.0 // indirect
	github.com/dustin/go-humanize v1.1.0 // indirect
	github.com/go-sql-driver/mysql v1.10.1
	github.com/google/uuid v1.6.0 // indirect
	github.com/holdfast-go/holdfast/mysqlstore v0.1.0
	github.com/holdfast-go/holdfast/pgstore v0.1.0
	github.com/jackc/pgpassfile v1.0.0 // indirect
	github.com/jackc/pgservicefile v0.0.0-20240606120523-5a60cdf6a761 // indirect
	github.com/jackc/pgx/v5 v5.12.0
	github.com/jackc/puddle/v2 v2.2.3 // indirect
	github.com/mattn/go-isatty v0.0.24 // indirect
	github.com/ncruces/go-strftime v1.1.0 // indirect
	github.com/ryszard/goskiplist v0.0.0-20150312221310-2dfbae5fcf46 // indirect
	github.com/remyoudompheng/bigfft v0.0.0-20230129092748-24d4a6f8daec // indirect
	golang.org/x/sync v0.24.0
	golang.org/x/sys v0.49.0
	golang.org/x/text v0.43.0 // indirect
	modernc.org/libc v1.79.0 // indirect
	modernc.org/mathutil v1.7.1 // indirect
	modernc.org/memory v1.12.1 // indirect
	modernc.org/sqlite v1.61.1
)

replace (
	github.com/holdfast-go/holdfast => ../
	github.com/holdfast-go/holdfast/check => ../check
	github.com/holdfast-go/holdfast/cmd/holdfast => ../cmd/holdfast
	github.com/holdfast-go/holdfast/etcdstore => ../etcdstore
	github.com/holdfast-go/holdfast/zkstore => ../zkstore
	github.com/holdfast-go/holdfast/redisstore => ../redisstore
	github.com/holdfast-go/holdfast/redisstore/goredis => ../redisstore/goredis
)
