module github.com/holdfast-go/holdfast/cronlock

go 1.26.0

require (
	github.com/holdfast-go/holdfast v0.1.0
	github.com/robfig/cron/v3 v3.0.1
)

require golang.org/x/sys v0.49.0 // indirect
