package main

import (
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/hicache/hicache/gohicache/cmd/hicache/internal/cli"
	"github.com/hicache/hicache/gohicache/cmd/hicache/internal/trace"
	"github.com/hicache/hicache/gohicache/cmd/hicache/internal/workload"
)

type genOptions struct {
	workload workload.Options
	out      string
}

func genFlags(o *genOptions) *cli.Flags {
	var about strings.Builder
	about.WriteString("Writes a built-in workload as a trace: JSON lines with hash_ids, in the form that published traces have.\n\nworkloads:")
	for _, k := range workload.Kinds() {
		fmt.Fprintf(&about, "\n  %s: %s\n", k, strings.ReplaceAll(workload.About(k), "\n", "\n    "))
	}
	f := cli.NewFlags("gen", "[options]", about.String(), 0)
	f.Group("options")
	addWorkloadFlags(f, &o.workload, "chat")
	f.Int(&o.workload.Requests, "limit", "requests", 1000, "how many requests to write")
	f.String(&o.out, "out", "FILE", "-", "where to write; compressed when the name ends in .gz, - for the standard output")
	return f
}

// addWorkloadFlags adds the options that gen and replay share.
func addWorkloadFlags(f *cli.Flags, o *workload.Options, def string) {
	f.String(&o.Kind, "workload", strings.Join(workload.Kinds(), "|"), def, "a built-in workload; hicache gen --help says what each does")
	f.Uint64(&o.Seed, "seed", "number", 1, "seed of everything random")
	f.Int(&o.BlockTokens, "block-tokens", "tokens", 0, fmt.Sprintf("tokens that one block id of a trace stands for; 0: %d for workloads; for traces what their first row says, else %d",
		workload.DefaultBlockTokens, trace.DefaultBlockTokens))
	f.Int(&o.PromptTokensMax, "prompt-max", "tokens", 0, "no generated prompt is longer; 0: 8192 for chat and rag, 65536 for agent, 4096 for uniform")
}

func runGen(args []string, _ io.Reader, out, errOut io.Writer) int {
	var o genOptions
	f := genFlags(&o)
	if exit, done := f.Parse(args, out, errOut); done {
		return exit
	}
	if o.workload.Requests < 1 {
		fmt.Fprintf(errOut, "hicache gen: option --limit: %d requests, want 1 or more\n", o.workload.Requests)
		return cli.Usage
	}
	src, err := workload.New(o.workload)
	if err != nil {
		fmt.Fprintf(errOut, "hicache gen: %v\n", err)
		return cli.Usage
	}
	if err := writeTrace(src, o.out, out); err != nil {
		fmt.Fprintf(errOut, "hicache gen: %v\n", err)
		return cli.Failed
	}
	return cli.OK
}

func writeTrace(src trace.Source, path string, out io.Writer) error {
	w := trace.NewWriter(out, src.BlockTokens())
	if path != "-" {
		var err error
		if w, err = trace.Create(path, src.BlockTokens()); err != nil {
			return err
		}
	}
	for {
		r, err := src.Next()
		if errors.Is(err, io.EOF) {
			return w.Close()
		} else if err != nil {
			return errors.Join(err, w.Close())
		}
		if err := w.Write(r); err != nil {
			return errors.Join(err, w.Close())
		}
	}
}
