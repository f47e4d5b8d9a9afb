//go:build linux || darwin

package check

import (
	"context"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"
)

// tab is a page in a headless browser.
type tab struct {
	t   *testing.T
	ctx context.Context
}

// openPage opens a file in a headless Chromium. It skips the test if no Chromium is
// installed.
func openPage(t *testing.T, path string) *tab {
	t.Helper()
	program := ""
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome", "google-chrome-stable"} {
		if p, err := exec.LookPath(name); err == nil {
			program = p
			break
		}
	}
	if program == "" {
		if os.Getenv("HOLDFAST_REQUIRE_SERVERS") == "1" {
			t.Fatal("no Chromium: apt-get install chromium")
		}
		t.Skip("no Chromium on this machine; with HOLDFAST_REQUIRE_SERVERS=1 this would fail")
	}
	// The default options make a new user data directory and remove it at the end.
	options := append(chromedp.DefaultExecAllocatorOptions[:len(chromedp.DefaultExecAllocatorOptions):len(chromedp.DefaultExecAllocatorOptions)],
		chromedp.ExecPath(program), chromedp.Headless, chromedp.NoSandbox,
		chromedp.Flag("disable-gpu", true), chromedp.Flag("disable-quic", true), chromedp.Flag("no-first-run", true),
		chromedp.Flag("disable-background-networking", true), chromedp.Flag("disable-component-update", true),
		chromedp.Flag("disable-sync", true))
	// The clean-up ends the browser, so the browser's context must outlive that of t.
	ctx, cancel := chromedp.NewExecAllocator(context.Background(), options...)
	t.Cleanup(cancel)
	ctx, cancel = chromedp.NewContext(ctx)
	browser := ctx
	t.Cleanup(func() {
		defer cancel()
		if err := chromedp.Cancel(browser); err != nil { // Cancel waits for the browser's end
			t.Log("closing the browser:", err)
		}
	})
	if err := chromedp.Do(ctx); err != nil {
		t.Fatalf("starting %s: %v", program, err)
	}
	ctx, cancel = context.WithTimeout(ctx, 2*time.Minute)
	t.Cleanup(cancel)
	if err := chromedp.Do(ctx, chromedp.EmulateViewport(1400, 900), chromedp.Navigate("file://"+path)); err != nil {
		t.Fatalf("opening the page: %v", err)
	}
	return &tab{t, ctx}
}

// eval runs a script and waits for its answer.
func eval[T any](p *tab, script string) T {
	p.t.Helper()
	v, err := chromedp.Run(p.ctx, chromedp.Evaluate[T](script, chromedp.EvalAwaitPromise, chromedp.EvalAsValue))
	if err != nil {
		p.t.Fatalf("%.200s: %v", script, err)
	}
	return v
}

// emulatePrint shows the page as it would be printed.
func (p *tab) emulatePrint() {
	p.t.Helper()
	_, err := chromedp.Run(p.ctx, func(ctx context.Context, t *chromedp.Target) (struct{}, error) {
		_, err := cdp.Call(ctx, t, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{Media: "print"})
		return struct{}{}, err
	})
	if err != nil {
		p.t.Fatal(err)
	}
}

func (p *tab) screenshot() []byte {
	p.t.Helper()
	shot, err := chromedp.Run(p.ctx, chromedp.CaptureScreenshot())
	if err != nil {
		p.t.Fatal(err)
	}
	return shot
}
