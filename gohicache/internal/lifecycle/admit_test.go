package lifecycle

import "testing"

func TestWindowPeak(t *testing.T) {
	for _, c := range []struct{ extend, maxNew, chunk, window, page, host, want int }{
		{1000, 100, 0, 128, 64, 0, 1064},
		{1000, 100, 256, 128, 64, 0, 320},
		{1000, 100, 256, 128, 64, 100, 448},
		{10, 5, 0, 128, 64, 0, 79},
		{10, 500, 0, 128, 64, 0, 192},
	} {
		if got := windowPeak(c.extend, c.maxNew, c.chunk, c.window, c.page, c.host); got != c.want {
			t.Errorf("%+v: %d", c, got)
		}
	}
}
