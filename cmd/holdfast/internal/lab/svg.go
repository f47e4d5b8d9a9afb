//go:build linux || darwin

package lab

import (
	"fmt"
	"html"
	"os"
	"path/filepath"
	"strings"
)

// The sizes in a drawing, in units of about one pixel.
const (
	panelWidth = 400
	rowHeight  = 35
	panelTop   = 62 // the height above the first row
	letter     = 6.9
)

// halo draws a white edge around a text, so that no line touches it.
const halo = `stroke="#fff" stroke-width="4" paint-order="stroke"`

// lifeline returns the position of an actor's lifeline.
func lifeline(a Actor) int { return [...]int{A: 14, Server: panelWidth / 2, B: panelWidth - 14}[a] }

func (u *Run) height() int { return panelTop + len(u.Steps)*rowHeight + 38 }

// Write writes the drawings of results into a directory: NAME.svg for each. It creates the
// directory if it is missing.
func Write(dir string, results []*Result) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	for _, r := range results {
		if err := os.WriteFile(filepath.Join(dir, r.Story.Name+".svg"), []byte(r.svg()), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// svg returns the drawing of the result, with the wrong lock on the left and holdfast on
// the right.
func (r *Result) svg() string {
	height := max(r.Wrong.height(), r.Right.height())
	const gap = 20
	var b strings.Builder
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" width="%[1]d" role="img" aria-label="%[3]s">`+"\n", 2*panelWidth+gap, height, html.EscapeString(r.describe()))
	b.WriteString(`<rect width="100%" height="100%" fill="#fff"/>` + "\n")
	b.WriteString(r.Wrong.panel(r.Story.Server, "the wrong lock"))
	fmt.Fprintf(&b, `<g transform="translate(%d 0)">`+"\n", panelWidth+gap)
	b.WriteString(r.Right.panel(r.Story.Server, "holdfast"))
	b.WriteString("</g>\n</svg>\n")
	return b.String()
}

// describe returns a description of the drawing, for screen readers.
func (r *Result) describe() string {
	return r.Mistake.Title + ". The wrong lock: " + r.Wrong.Outcome + " Holdfast: " + r.Right.Outcome
}

// pillWidth returns the width of the box around an answer.
func pillWidth(answer string) int { return 2*int(float64(len(answer))*letter/2) + 14 }

// drawer writes the elements of a drawing.
type drawer struct{ strings.Builder }

// text writes a text at a position. The anchor is the end of the text that has the position: "start",
// "middle" or "end".
func (d *drawer) text(x, y int, anchor, style, s string) {
	fmt.Fprintf(d, `<text x="%d" y="%d" text-anchor="%s" %s>%s</text>`+"\n", x, y, anchor, style, html.EscapeString(s))
}

// panel returns one half of a drawing: the steps of one run, from top to bottom.
func (u *Run) panel(server, title string) string {
	var d drawer
	ink := "#1a7f37"
	if u.Violated {
		ink = "#cf222e"
	}
	d.WriteString(`<g font-family="ui-monospace, Menlo, Consolas, monospace" font-size="11.5" fill="#1b1f24">` + "\n")
	bold := `font-family="system-ui, sans-serif" font-size="13" font-weight="bold"`
	d.text(panelWidth/2, 16, "middle", bold+` fill="`+ink+`"`, title)
	bottom := u.height() - 22
	for a, name := range [...]string{"client A", server, "client B"} {
		anchor := [...]string{"start", "middle", "end"}[a]
		x := [...]int{4, panelWidth / 2, panelWidth - 4}[a]
		d.text(x, 38, anchor, bold, name)
		fmt.Fprintf(&d, `<path d="M%d 44V%d" stroke="#8c959f"/>`+"\n", lifeline(Actor(a)), bottom)
	}
	for i := range u.Steps {
		t := &u.Steps[i]
		y := panelTop + i*rowHeight + 12
		u.drawHolders(&d, t, y)
		draw(t, &d, y)
	}
	d.text(panelWidth/2, bottom+14, "middle", `font-family="system-ui, sans-serif" font-size="11.5" fill="`+ink+`"`, u.Outcome)
	d.WriteString("</g>\n")
	return d.String()
}

// drawHolders draws a bar for each client that relies on the lock after a step. The bars of two such clients
// are red, unless each has a lock of its own.
func (u *Run) drawHolders(d *drawer, t *Step, y int) {
	for _, a := range []Actor{A, B} {
		if t.Holds[a] {
			colour := "#0969da"
			if t.Holds[a.Other()] && !u.Apart {
				colour = "#cf222e"
			}
			fmt.Fprintf(d, `<path d="M%d %dv%d" stroke="%s" stroke-width="7"/>`+"\n", lifeline(a), y, rowHeight, colour)
		}
	}
}

// draw draws a step: an action of the server, an action of a client, or a client's request with an arrow to
// the server's answer.
func draw(t *Step, d *drawer, y int) {
	if t.Actor == Server {
		d.pill(y, "#fff8c5", t.Text)
		return
	}
	anchor := map[Actor]string{A: "start", B: "end"}[t.Actor]
	side := int(t.Actor - Server) // -1 on the left, 1 on the right
	x := lifeline(t.Actor) - 12*side
	if t.Answer == "" {
		d.text(x, y+3, anchor, `font-style="italic" fill="#57606a" `+halo, t.Text)
		return
	}
	d.text(x, y-13, anchor, halo, t.Text)
	tip := lifeline(Server) + side*pillWidth(t.Answer)/2
	fmt.Fprintf(d, `<path d="M%d %dH%d" stroke="#1b1f24"/><path d="M%[3]d %[2]dl%[4]d -4v8z"/>`+"\n", lifeline(t.Actor), y, tip, 8*side)
	d.pill(y, "#ddf4ff", t.Answer)
}

// pill draws a box with a text on the lifeline of the server.
func (d *drawer) pill(y int, fill, s string) {
	width := pillWidth(s)
	fmt.Fprintf(d, `<rect x="%d" y="%d" width="%d" height="18" rx="9" fill="%s" stroke="#8c959f"/>`+"\n", (panelWidth-width)/2, y-9, width, fill)
	d.text(panelWidth/2, y+4, "middle", "", s)
}
