package main

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
)

// The axes of the chart of scale are logarithmic: clients from 100 to a million, and requests a second.
const (
	scaleLeft, scaleTop, scaleBottom = 80, 60, 470
	clientsWidth, requestsHeight     = 130, 62 // of a factor of ten
	leastClients, leastRequests      = 100, 10
)

// drawScale draws the lines of a file: the store, the clients, and the requests a second at the server, simulated and
// measured: all the time and in the busiest second after a restart. A minus is a number that was not measured.
func drawScale(file, dir string) error {
	data, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	var b strings.Builder
	x := func(clients float64) int { return scaleLeft + int(clientsWidth*math.Log10(clients/leastClients)) }
	y := func(requests float64) int {
		return scaleBottom - int(requestsHeight*math.Log10(max(requests, leastRequests)/leastRequests))
	}
	label(&b, 10, 30, "title", "Requests a second at the servers: lines simulated, dots measured")
	for n := 0; n <= 4; n++ {
		at := x(leastClients * math.Pow10(n))
		fmt.Fprintf(&b, "<path d=\"M%d %dV%d\" stroke=\"#d0d7de\"/>\n", at, scaleTop, scaleBottom)
		label(&b, at-20, scaleBottom+20, "name", fmt.Sprintf("%.0f", leastClients*math.Pow10(n)))
	}
	label(&b, x(1e6)+40, scaleBottom+20, "name", "clients")
	for n := 0; n <= 6; n++ {
		at := y(leastRequests * math.Pow10(n))
		fmt.Fprintf(&b, "<path d=\"M%d %dH%d\" stroke=\"#d0d7de\"/>\n", scaleLeft, at, x(1e6))
		label(&b, 6, at+4, "name", fmt.Sprintf("%.0f", leastRequests*math.Pow10(n)))
	}
	colors := []string{"#0969da", "#bc4c00", "#1a7f37"}
	var stores []string
	lines := map[string]string{}
	for _, line := range strings.Split(strings.TrimSpace(string(data)), "\n") {
		if strings.HasPrefix(line, "#") {
			continue
		}
		var store string
		var clients float64
		var n [4]string // simulated and measured: steady, storm
		if _, err := fmt.Sscan(line, &store, &clients, &n[0], &n[1], &n[2], &n[3]); err != nil {
			return fmt.Errorf("%q: %w", line, err)
		}
		if len(stores) == 0 || stores[len(stores)-1] != store {
			stores = append(stores, store)
		}
		color := colors[(len(stores)-1)%len(colors)]
		for i, text := range n {
			var requests float64
			if text == "-" {
				continue
			}
			if _, err := fmt.Sscan(text, &requests); err != nil {
				return fmt.Errorf("%q: %w", line, err)
			}
			if i < 2 {
				lines[fmt.Sprint(store, i)] += fmt.Sprintf(" %d,%d", x(clients), y(requests))
			} else {
				fmt.Fprintf(&b, "<circle cx=\"%d\" cy=\"%d\" r=\"5\" fill=\"%s\"/>\n", x(clients), y(requests), color)
			}
		}
	}
	for i, store := range stores {
		for storm, style := range []string{"", " stroke-dasharray=\"6 4\""} {
			fmt.Fprintf(&b, "<polyline points=\"%s\" fill=\"none\" stroke=\"%s\" stroke-width=\"2\"%s/>\n", strings.TrimSpace(lines[fmt.Sprint(store, storm)]), colors[i%len(colors)], style)
		}
		fmt.Fprintf(&b, "<rect x=\"%d\" y=\"%d\" width=\"14\" height=\"14\" fill=\"%s\"/>\n", x(1e6)+20, scaleTop+24*i, colors[i%len(colors)])
		label(&b, x(1e6)+40, scaleTop+24*i+12, "name", store)
	}
	label(&b, 10, scaleBottom+46, "name", "Solid: all the time. Dashed: the busiest second after the servers were away for 15 s.")
	label(&b, 10, scaleBottom+66, "name", "Each client has its own connections and one lock with a TTL of 30 s. The requests of all servers together.")
	return os.WriteFile(filepath.Join(dir, "scale.svg"), []byte(document("Requests a second at the servers, by the number of clients", scaleBottom+80, b.String())), 0o644)
}
