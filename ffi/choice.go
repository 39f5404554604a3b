package ffi

import (
	"fmt"
	"strings"
)

func (s ChoiceSource) String() string {
	switch s {
	case ChoiceSourceNone:
		return "none"
	case ChoiceSourceTable:
		return "table"
	case ChoiceSourceForced:
		return "forced"
	case ChoiceSourcePartly:
		return "partly calibrated"
	case ChoiceSourceCalibrated:
		return "calibrated"
	}
	return fmt.Sprintf("ChoiceSource(%d)", uint32(s))
}

// String is one line for people.
func (c CopyChoice) String() string {
	var b strings.Builder
	b.WriteString(c.Source.String())
	switch {
	case c.Source == ChoiceSourceNone:
		b.WriteString(": nothing crosses a bus")
		return b.String()
	case c.Source == ChoiceSourceForced:
		fmt.Fprintf(&b, ": %s", [...]string{"auto", "direct", "kernel", "staged"}[c.Method&3])
		return b.String()
	case c.ProbesPlanned > 0:
		fmt.Fprintf(&b, " (%d of %d probes in %.1f ms)", c.ProbesMeasured, c.ProbesPlanned, float64(c.CalibrationUs)/1000)
	}
	pair := func(v [2]uint64) string {
		if v[0] == v[1] {
			return fmt.Sprintf("%d KiB", v[0]>>10)
		}
		return fmt.Sprintf("%d KiB (%d KiB while copies go the other way)", v[0]>>10, v[1]>>10)
	}
	fmt.Fprintf(&b, ": direct from %s, staged below %s in runs from %s, else by kernel on %d blocks", pair(c.DirectFromBytes), pair(c.StagedBelowBytes),
		pair(c.StagedFromRunBytes), c.KernelBlocksAlone)
	if c.KernelBlocksBeside > 0 {
		fmt.Fprintf(&b, ", %d beside compute", c.KernelBlocksBeside)
	} else {
		b.WriteString(", none beside compute")
	}
	fmt.Fprintf(&b, " (slowdown up to %.1f %%)", float64(c.SlowdownMaxPermille)/10)
	if c.DirectUpToCount > 0 {
		fmt.Fprintf(&b, "; up to %d pages always direct", c.DirectUpToCount)
	}
	if c.MeasuredBytes > 0 {
		fmt.Fprintf(&b, "; at %d KiB", c.MeasuredBytes>>10)
		separator := " "
		for _, of := range []struct {
			name string
			mbS  uint32
		}{{"direct", c.DirectMbS}, {"kernel", c.KernelMbS}, {"staged", c.StagedMbS}} {
			if of.mbS > 0 {
				fmt.Fprintf(&b, "%s%s %.1f", separator, of.name, float64(of.mbS)/1000)
				separator = ", "
			}
		}
		b.WriteString(" GB/s")
	}
	return b.String()
}
