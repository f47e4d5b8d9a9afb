package main

import (
	"fmt"
	"html"
	"strings"
)

// Sizes of a chart, in its own units.
const (
	chartWidth = 860
	labelWidth = 250
	barsWidth  = 420
	rowHeight  = 22
)

// chart draws the median of each contender as a bar, one group of bars for each work. The
// longest bar of a group is its largest median. before and after are the machine's load.
func chart(store string, done []work, all [][]result, before, after string) string {
	var b strings.Builder
	y := 30
	text := func(x int, class, s string) { label(&b, x, y, class, s) }
	text(10, "title", "Pairs of lock and unlock a second: "+store)
	for i, w := range done {
		y += 34
		text(10, "work", w.String())
		most := 1.0
		for j := range all[i] {
			most = max(most, all[i][j].rate())
		}
		for j := range all[i] {
			r := &all[i][j]
			rate, least, top := r.statistics(func(v verdict) float64 { return v.rate })
			y += rowHeight
			text(10, "name", r.contender.name)
			color := "#8c959f"
			if !r.contender.peer && !r.contender.bare && !r.contender.limit {
				color = "#0969da"
			}
			fmt.Fprintf(&b, "<rect x=\"%d\" y=\"%d\" width=\"%.1f\" height=\"%d\" fill=\"%s\"/>\n", labelWidth, y-13, max(1, rate/most*barsWidth), rowHeight-6, color)
			value := fmt.Sprintf("%.0f (%.0f to %.0f)", rate, least, top)
			if w.contested() {
				share, _, _ := r.statistics(func(v verdict) float64 { return v.share })
				value = fmt.Sprintf("%.0f, share %.2f", rate, share)
			}
			text(labelWidth+int(rate/most*barsWidth)+6, "name", value)
		}
	}
	y += 30
	text(10, "name", "Blue: holdfast. Grey: its peers. Share: the least served client to the most served one.")
	y += rowHeight
	text(10, "name", fmt.Sprintf("Medians of %d turns of %s in one run; load of the machine %s before it, %s after it.", *rounds, *turn, before, after))
	return document("Pairs of lock and unlock a second on "+store, y+14, b.String())
}

func label(b *strings.Builder, x, y int, class, s string) {
	fmt.Fprintf(b, "<text x=\"%d\" y=\"%d\" class=\"%s\">%s</text>\n", x, y, class, html.EscapeString(s))
}

// document returns a picture with a title for screen readers.
func document(title string, height int, content string) string {
	head := fmt.Sprintf("<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %d\" font-family=\"sans-serif\" role=\"img\" aria-labelledby=\"t\">\n"+
		"<title id=\"t\">%s</title>\n"+
		"<style>text{fill:#24292f;font-size:13px}.title{font-size:18px;font-weight:bold}.work{font-size:14px;font-weight:bold}</style>\n"+
		"<rect width=\"%d\" height=\"%d\" fill=\"#ffffff\"/>\n", chartWidth, height, html.EscapeString(title), chartWidth, height)
	return head + content + "</svg>\n"
}
