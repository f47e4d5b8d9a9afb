module github.com/holdfast-go/holdfast

go 1.26.0

require (
	go.uber.org/goleak v1.3.0
	golang.org/x/sys v0.49.0
	pgregory.net/rapid v1.3.0
)

require github.com/stretchr/testify v1.12.1 // indirect
