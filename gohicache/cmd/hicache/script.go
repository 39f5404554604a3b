package main

import (
	"fmt"
	"io"
	"math"

	"github.com/hicache/hicache/gohicache/cmd/hicache/internal/cli"
	"github.com/hicache/hicache/gohicache/internal/script"
)

func scriptFlags(o *script.Options, replay *string) *cli.Flags {
	f := cli.NewFlags("script", "[options] [FILE ...]",
		"Runs scripts over an engine and a cache: a command, ----, the output it must give (docs/SCRIPT.md). Without a file it is a prompt.", math.MaxInt)
	f.Group("options")
	f.Bool(&o.Rewrite, "rewrite", "write the outputs into the files instead of comparing them")
	f.String(replay, "replay", "FILE", "", "repeat an operation log of the engine (docs/OPLOG.md) instead, and compare every answer")
	f.Bool(&o.JSON, "json", "one object a command: line, command, output, values, whether it is as expected")
	f.String(&o.Library, "library", "PATH", "", "libhicache.so to use; empty: where the loader looks")
	return f
}

func runScript(args []string, in io.Reader, out, errOut io.Writer) int {
	var o script.Options
	var replay string
	f := scriptFlags(&o, &replay)
	if exit, done := f.Parse(args, out, errOut); done {
		return exit
	}
	if replay != "" {
		if len(f.Args()) > 0 || o.Rewrite {
			fmt.Fprintln(errOut, "hicache script: --replay takes no scripts and rewrites nothing")
			return 2
		}
		return script.Replay(replay, o, out, errOut)
	}
	return script.Main(f.Args(), o, in, out, errOut)
}
