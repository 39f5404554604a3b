package ffi

import (
	"strings"
	"testing"
)

func TestCopyChoiceInWords(t *testing.T) {
	calibrated := CopyChoice{Source: ChoiceSourceCalibrated, DirectFromBytes: [2]uint64{48 << 10, 12 << 10}, StagedBelowBytes: [2]uint64{48 << 10, 48 << 10},
		StagedFromRunBytes: [2]uint64{64 << 10, 64 << 10}, KernelBlocksAlone: 4, KernelBlocksBeside: 2, SlowdownMaxPermille: 200, ProbesMeasured: 34,
		ProbesPlanned: 34, CalibrationUs: 21500, MeasuredBytes: 64 << 10, DirectMbS: 53100, KernelMbS: 49000}
	partly := calibrated
	partly.Source, partly.ProbesMeasured, partly.KernelBlocksBeside, partly.DirectUpToCount, partly.StagedMbS = ChoiceSourcePartly, 3, 0, 4, 51000
	for _, c := range []struct {
		choice CopyChoice
		want   []string
	}{
		{CopyChoice{}, []string{"none: nothing crosses a bus"}},
		{CopyChoice{Source: ChoiceSourceForced, Method: CopyMethodStaged}, []string{"forced: staged"}},
		{calibrated, []string{"calibrated (34 of 34 probes in 21.5 ms)", "direct from 48 KiB (12 KiB while copies go the other way)", "staged below 48 KiB in runs from 64 KiB,",
			"on 4 blocks, 2 beside compute (slowdown up to 20.0 %)", "at 64 KiB direct 53.1, kernel 49.0 GB/s"}},
		{partly, []string{"partly calibrated (3 of 34", "none beside compute", "up to 4 pages always direct", "staged 51.0 GB/s"}},
	} {
		got := c.choice.String()
		for _, want := range c.want {
			if !strings.Contains(got, want) {
				t.Errorf("%q lacks %q", got, want)
			}
		}
	}
}
