package driver

import "context"

// Weight is how much a finding matters. It is a short word for programs.
type Weight string

// The weights, the heaviest first.
const (
	// WeightBreaks: two clients may get one lock, a lock may end early, or it cannot be had. Another setting prevents
	// that.
	WeightBreaks Weight = "breaks"
	// WeightCosts: locks take longer, or are unavailable for a while.
	WeightCosts Weight = "costs"
	// WeightNote: something to know. The locks are as the guarantees say.
	WeightNote Weight = "note"
)

// Describe returns a sentence for people.
func (w Weight) Describe() string {
	return map[Weight]string{
		WeightBreaks: "breaks a promise", WeightCosts: "costs time", WeightNote: "is good to know",
	}[w]
}

// Check is one thing that a store examines at its server.
type Check struct {
	// Name is a short word for programs. It is unique in its store.
	Name   string
	Weight Weight
	// Want is what a good server has, Consequence what another one does to locks, and Remedy what to do about it.
	Want, Consequence, Remedy string
}

// Finding is a Check that a server does not pass.
type Finding struct {
	Check
	// Evidence is what was found.
	Evidence string
}

// Examiner is implemented by stores that can examine their server beyond what a lock needs. What a store refuses is
// no Finding: Guarantees returns it as an error.
type Examiner interface {
	// Checks returns all checks of the store. It sends no request.
	Checks() []Check
	// Examine returns what it has found, in any order. It changes no lock, and leaves nothing at the server. A check
	// for which the user has no right is skipped, and a finding of WeightNote says so. An error means that nothing
	// could be read. It has a code as every error of the store.
	Examine(ctx context.Context) ([]Finding, error)
}
