module github.com/holdfast-go/holdfast/internal/servers

go 1.26.0

require (
	github.com/holdfast-go/holdfast v0.1.0
	go.uber.org/goleak v1.3.0
	golang.org/x/sys v0.49.0
)

require go.yaml.in/yaml/v3 v3.0.5 // indirect
