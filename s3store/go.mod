module github.com/holdfast-go/holdfast/s3store

go 1.26.0

require github.com/holdfast-go/holdfast v0.1.0

require golang.org/x/sys v0.49.0 // indirect
