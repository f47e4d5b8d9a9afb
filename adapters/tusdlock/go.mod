module github.com/holdfast-go/holdfast/adapters/tusdlock

go 1.26.0

require (
	github.com/holdfast-go/holdfast v0.1.0
	github.com/tus/tusd/v2 v2.9.1
)

require (
	go.yaml.in/yaml/v3 v3.0.6 // indirect
	golang.org/x/exp v0.0.0-20250106191152-7588d65b2ba8 // indirect
	golang.org/x/sys v0.49.0 // indirect
)
