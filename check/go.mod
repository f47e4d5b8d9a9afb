module github.com/holdfast-go/holdfast/check

go 1.26.0

require (
	github.com/anishathalye/porcupine v1.3.1
	github.com/chromedp/cdproto v0.159.0
	github.com/chromedp/chromedp v0.22.1
	github.com/holdfast-go/holdfast v0.1.0
	github.com/holdfast-go/holdfast/internal/servers v0.1.0
	golang.org/x/sys v0.49.0
)

require github.com/go-json-experiment/json v0.0.0-20260213210345-44df1a37e875 // indirect
