package script

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/hicache/hicache/gohicache/internal/oplog"
)

// Replayed is what a replay came to, also the object that --json prints.
type Replayed struct {
	File       string `json:"file"`
	Records    int    `json:"records"`
	End        string `json:"end"` // How the log ends: "stopped", "full" or "without a mark".
	Identical  bool   `json:"identical"`
	Mismatch   string `json:"mismatch,omitempty"`
	Violations string `json:"violations,omitempty"` // Of the invariants, at the end.
}

// Replay repeats an operation log of the engine and returns a process exit code: 0 every answer was as recorded, 1 one was not, 2 the log cannot
// be read, 3 the engine cannot be opened.
func Replay(file string, o Options, out, errOut io.Writer) int {
	data, err := os.ReadFile(file)
	if err != nil {
		fmt.Fprintln(errOut, "hicache script:", err)
		return 2
	}
	log, err := oplog.Parse(data)
	if err != nil {
		fmt.Fprintf(errOut, "hicache script: %s: %v\n", file, err)
		return 2
	}
	r, err := oplog.Open(log, o.Library)
	if err != nil {
		fmt.Fprintf(errOut, "hicache script: %s: %v\n", file, err)
		return 3
	}
	result := Replayed{File: file, Records: len(log.Records), End: log.End.String()}
	err = r.Run()
	if errors.Is(err, oplog.ErrCorrupt) {
		fmt.Fprintf(errOut, "hicache script: %s: %v\n", file, errors.Join(err, r.Close()))
		return 2
	}
	if err != nil {
		result.Mismatch = err.Error()
	}
	if report, verifyErr := r.Engine.Verify(); verifyErr != nil {
		result.Violations = report
	}
	if closeErr := r.Close(); closeErr != nil && err == nil {
		result.Mismatch = "close: " + closeErr.Error()
	}
	result.Identical = result.Mismatch == "" && result.Violations == ""
	printReplayed(out, &result, o.JSON)
	if !result.Identical {
		return 1
	}
	return 0
}

func printReplayed(out io.Writer, r *Replayed, asJSON bool) {
	if asJSON {
		line, _ := json.Marshal(r)
		fmt.Fprintf(out, "%s\n", line)
		return
	}
	if r.Identical {
		fmt.Fprintf(out, "%s: %d records repeated, every answer as recorded; the log ends %s\n", r.File, r.Records, r.End)
		return
	}
	if r.Mismatch != "" {
		fmt.Fprintf(out, "%s: %s\n", r.File, r.Mismatch)
	}
	if r.Violations != "" {
		fmt.Fprintf(out, "%s: invariants: %s\n", r.File, r.Violations)
	}
}
