package main

import (
	"encoding/json"
	"fmt"
	"io"

	"github.com/hicache/hicache/gohicache/cmd/hicache/internal/cli"
	"github.com/hicache/hicache/gohicache/cmd/hicache/internal/doctor"
)

type doctorOptions struct {
	library string
	json    bool
}

func doctorFlags(o *doctorOptions) *cli.Flags {
	f := cli.NewFlags("doctor", "[options]", "Looks at the library and the machine as a cache would use them and says what to change (exit code 1 when the cache cannot run).", 0)
	f.Group("options")
	f.String(&o.library, "library", "FILE", "", "path of libhicache; none: HICACHE_LIBRARY, beside the program, the build folder, the system")
	f.Bool(&o.json, "json", "print the findings as a JSON list")
	return f
}

func runDoctor(args []string, _ io.Reader, out, errOut io.Writer) int {
	var o doctorOptions
	f := doctorFlags(&o)
	if exit, done := f.Parse(args, out, errOut); done {
		return exit
	}
	m := doctor.Machine{Library: o.library}
	findings := m.Examine()
	var err error
	if o.json {
		enc := json.NewEncoder(out)
		enc.SetIndent("", "  ")
		err = enc.Encode(findings)
	} else {
		err = doctor.Write(out, findings)
	}
	if err != nil {
		fmt.Fprintf(errOut, "hicache doctor: %v\n", err)
		return cli.Failed
	}
	if !doctor.Healthy(findings) {
		return cli.CheckFailed
	}
	return cli.OK
}
