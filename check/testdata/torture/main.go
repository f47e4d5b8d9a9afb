// Torture runs one check. Its first argument is the check.Config as JSON. It prints the report as
// JSON, or as text if there is a second argument. Tests build it with a defect planted in the library.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"

	"github.com/holdfast-go/holdfast/check"
)

func main() {
	check.MaybeWorker()
	var c check.Config
	err := json.Unmarshal([]byte(os.Args[1]), &c)
	var r *check.Report
	if err == nil {
		r, err = check.Run(context.Background(), c)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	if len(os.Args) > 2 {
		_ = r.Summary(os.Stdout)
		_ = r.Explain(os.Stdout)
		return
	}
	_ = json.NewEncoder(os.Stdout).Encode(r)
}
