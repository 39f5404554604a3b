package main

import (
	"encoding/json"
	"fmt"
	"io"

	"github.com/hicache/hicache/gohicache/cmd/hicache/internal/cli"
	"github.com/hicache/hicache/gohicache/cmd/hicache/internal/plan"
	"github.com/hicache/hicache/gohicache/cmd/hicache/internal/replay"
)

type planOptions struct {
	shape         shapeOptions
	requestTokens int
	json          bool
}

func planFlags(o *planOptions) *cli.Flags {
	f := cli.NewFlags("plan", "[options]", `Says what fits a geometry and tier sizes, without running anything: tokens, windows, states, the sink, what is lost at page
boundaries; and itemised why something does not fit (exit code 2 when not even one request fits the device).`, 0)
	addShapeFlags(f, &o.shape, 1)
	f.Group("question")
	f.Int(&o.requestTokens, "request-tokens", "tokens", 8192, "the longest request, prompt and answer together")
	f.Bool(&o.json, "json", "print the answer as one JSON object")
	return f
}

func runPlan(args []string, _ io.Reader, out, errOut io.Writer) int {
	var o planOptions
	f := planFlags(&o)
	if exit, done := f.Parse(args, out, errOut); done {
		return exit
	}
	answer, err := o.work()
	if err != nil {
		fmt.Fprintf(errOut, "hicache plan: %v\n", err)
		return cli.Usage
	}
	if o.json {
		b, err := json.MarshalIndent(answer, "", "  ")
		if err == nil {
			_, err = fmt.Fprintf(out, "%s\n", b)
		}
		if err != nil {
			fmt.Fprintf(errOut, "hicache plan: %v\n", err)
			return cli.Failed
		}
	} else if err := answer.Write(out); err != nil {
		fmt.Fprintf(errOut, "hicache plan: %v\n", err)
		return cli.Failed
	}
	if !answer.Feasible {
		return cli.Usage
	}
	return cli.OK
}

func (o *planOptions) work() (*plan.Answer, error) {
	g, err := o.shape.shape()
	if err != nil {
		return nil, err
	}
	if o.requestTokens < 1 || o.requestTokens > 1<<30 {
		return nil, fmt.Errorf("option --request-tokens: %d, want 1 to %d", o.requestTokens, 1<<30)
	}
	c := replay.Config{Geometry: g, PageTokens: o.shape.pageTokens, Device: o.shape.device, Host: o.shape.host, Concurrency: o.shape.concurrency,
		WindowsTail: o.shape.windows == "tail", PromptTokensMax: o.requestTokens}
	sizes, err := c.Resolve()
	if err != nil {
		return nil, err
	}
	return plan.Work(plan.Question{Geometry: g, PageTokens: o.shape.pageTokens, DeviceBytes: sizes.DeviceBytes, HostBytes: sizes.HostBytes,
		Concurrency: o.shape.concurrency, RequestTokens: o.requestTokens, WindowsTail: o.shape.windows == "tail"})
}
