// Package size reads the sizes that options take: bytes (plain or with a unit) or tokens.
package size

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// Size is an amount of memory: Bytes, or the bytes that Tokens full-attention tokens need (which depends on the geometry). At most one of
// the two is set; neither is for "0", which turns a tier off.
type Size struct {
	Bytes  int64
	Tokens int64
	Text   string // as it was given
}

// IsZero says that the size is 0 in whatever unit.
func (s Size) IsZero() bool { return s.Bytes == 0 && s.Tokens == 0 }

// Set makes *Size a flag.Value; it accepts zero, which the caller refuses where zero makes no sense.
func (s *Size) Set(text string) error {
	v, err := Parse(text)
	if err == nil {
		*s = v
	}
	return err
}

func (s Size) String() string {
	switch {
	case s.Text != "":
		return s.Text
	case s.Tokens != 0:
		return strconv.FormatInt(s.Tokens, 10) + "tok"
	}
	return Format(s.Bytes)
}

var units = []struct {
	suffix string
	factor float64
}{
	{"KiB", 1 << 10}, {"MiB", 1 << 20}, {"GiB", 1 << 30}, {"TiB", 1 << 40},
	{"kB", 1e3}, {"KB", 1e3}, {"MB", 1e6}, {"GB", 1e9}, {"TB", 1e12},
	{"B", 1},
}

const forms = "want bytes like 41943040, 40GiB or 1.5GB, or tokens like 5120000tok"

// Parse reads a size: bytes (`41943040`, `40GiB`, `1.5GB`; KiB, MiB, GiB, TiB are powers of 1024, kB, MB, GB, TB of 1000) or tokens
// (`5120000tok`). Negative sizes, sizes of 2^63 or more and anything else are errors that quote the text.
func Parse(text string) (Size, error) {
	number, factor, tokens := strings.TrimSpace(text), 1.0, false
	if n, ok := strings.CutSuffix(number, "tok"); ok {
		number, tokens = n, true
	} else {
		for _, u := range units {
			if n, ok := strings.CutSuffix(number, u.suffix); ok {
				number, factor = n, u.factor
				break
			}
		}
	}
	v, err := amount(strings.TrimSpace(number), factor)
	if err != nil {
		return Size{}, fmt.Errorf("size %q: %w", text, err)
	}
	if tokens {
		return Size{Tokens: v, Text: text}, nil
	}
	return Size{Bytes: v, Text: text}, nil
}

func amount(number string, factor float64) (int64, error) {
	if number == "" || strings.Trim(number, "0123456789.-") != "" {
		return 0, fmt.Errorf("is not a size: %s", forms)
	}
	if strings.HasPrefix(number, "-") {
		return 0, fmt.Errorf("is negative")
	}
	if whole, err := strconv.ParseUint(number, 10, 64); err == nil { // exact above 2^53
		if whole > math.MaxInt64/uint64(factor) {
			return 0, fmt.Errorf("is 2^63 or more")
		}
		return int64(whole * uint64(factor)), nil
	}
	f, err := strconv.ParseFloat(number, 64)
	switch {
	case err == nil && f*factor >= math.MaxInt64:
		return 0, fmt.Errorf("is 2^63 or more")
	case err != nil || f*factor != math.Trunc(f*factor):
		return 0, fmt.Errorf("is not a whole number of bytes or tokens: %s", forms)
	}
	return int64(f * factor), nil
}

// Format writes bytes with a binary unit and three digits, as "12.5 GiB".
func Format(bytes int64) string {
	v, unit := float64(bytes), "B"
	for _, u := range []string{"KiB", "MiB", "GiB", "TiB", "PiB"} {
		if math.Abs(v) < 1024 {
			break
		}
		v, unit = v/1024, u
	}
	if unit == "B" {
		return fmt.Sprintf("%d B", bytes)
	}
	return strconv.FormatFloat(v, 'g', max(3, len(strconv.Itoa(int(math.Abs(v))))), 64) + " " + unit
}
