// Package story draws what two clients and a server do: a column for each client, the server between them, and
// the time downwards.
package story

import (
	"fmt"
	"strings"
)

// Actor is a column of the drawing.
type Actor int

// The actors.
const (
	A      Actor = iota // the client on the left
	Server              // the server
	B                   // the client on the right
)

// String returns "A", "B" or "server".
func (a Actor) String() string { return [...]string{"A", "server", "B"}[a] }

// Other returns the other client.
func (a Actor) Other() Actor { return B - a }

// Step is one line of the drawing.
type Step struct {
	Actor Actor
	// Text describes a request in at most 25 characters, or an action without a request.
	// The limit for an action is 27 characters, and 17 for one of the server.
	Text string
	// Answer is the server's answer, at most 17 characters. A step without an answer has no
	// arrow.
	Answer string
	// Holds marks the clients that rely on the lock after this step.
	Holds [3]bool
}

// The widths of a client's column and of the server's. With the three lifelines a line has
// 79 characters.
const (
	sideWidth   = 29
	middleWidth = 17
)

// Head returns the line above the drawing.
func Head(server string) string {
	return fmt.Sprintf("%-*s%s%*s\n", sideWidth+1, "client A █: relies on the lock", centre(server, middleWidth+2), sideWidth+1, "client B")
}

// Line returns the text of a step. The answer is in the server's column.
func (t Step) Line() string {
	left, middle, right := "", t.Answer, ""
	switch arrow := t.Answer != ""; {
	case t.Actor == Server:
		middle = t.Text
	case t.Actor == A && arrow:
		left = " " + t.Text + " " + strings.Repeat("─", max(sideWidth-len(t.Text)-3, 0)) + "▶"
	case t.Actor == A:
		left = " " + t.Text
	case arrow:
		right = "◀" + strings.Repeat("─", max(sideWidth-len(t.Text)-3, 0)) + " " + t.Text + " "
	default:
		right = fmt.Sprintf("%*s", sideWidth-1, t.Text)
	}
	bar := map[bool]string{false: "│", true: "█"}
	return bar[t.Holds[A]] + pad(left, sideWidth) + "│" + centre(middle, middleWidth) + "│" + pad(right, sideWidth) + bar[t.Holds[B]]
}

func pad(s string, width int) string { return s + strings.Repeat(" ", max(width-len([]rune(s)), 0)) }

func centre(s string, width int) string {
	space := max(width-len(s), 0)
	return pad(strings.Repeat(" ", space/2)+s, width)
}
