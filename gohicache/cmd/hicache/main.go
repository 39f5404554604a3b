// Command hicache replays request traces through a tiered KV cache, makes such traces, plans sizes and looks at the machine.
package main

import (
	"os"

	"github.com/hicache/hicache/gohicache/cmd/hicache/internal/cli"
	"github.com/hicache/hicache/gohicache/internal/script"
)

const about = "hicache: a tiered KV-cache memory manager for LLM inference servers, at the command line."

// commands is the one place where a command is added. A command lives in a file of its own.
var commands = []cli.Command{
	{Name: "replay", Summary: "run a trace or a workload through all tiers and check every reused page", Run: runReplay, Options: func() *cli.Flags { return replayFlags(&replayOptions{}) }},
	{Name: "plan", Summary: "say what fits a geometry and sizes, and why not", Run: runPlan, Options: func() *cli.Flags { return planFlags(&planOptions{}) }},
	{Name: "doctor", Summary: "look at the library and the machine, and say what to change", Run: runDoctor, Options: func() *cli.Flags { return doctorFlags(&doctorOptions{}) }},
	{Name: "gen", Summary: "write a built-in workload as a trace", Run: runGen, Options: func() *cli.Flags { return genFlags(&genOptions{}) }},
	{Name: "bench", Summary: "measure engine, cache and eviction policies against bars and peers", Run: runBench, Options: func() *cli.Flags { return benchFlags(&benchOptions{}) }},
	{Name: "script", Summary: "run scripts over an engine and a cache, or a prompt", Run: runScript, Options: func() *cli.Flags { return scriptFlags(&script.Options{}, new(string)) }},
}

func main() {
	os.Exit(cli.Dispatch(commands, about, os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
}
