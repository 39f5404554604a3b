package size

import (
	"strings"
	"testing"
)

func TestParse(t *testing.T) {
	for _, c := range []struct {
		text          string
		bytes, tokens int64
	}{
		{"0", 0, 0}, {"0tok", 0, 0}, {"4096", 4096, 0}, {"40GiB", 40 << 30, 0}, {"1.5KiB", 1536, 0}, {"2TiB", 2 << 40, 0}, {" 3 MB ", 3e6, 0},
		{"7B", 7, 0}, {"5120000tok", 0, 5120000}, {"9223372036854775807", 1<<63 - 1, 0}, {"8388607TiB", 8388607 << 40, 0},
	} {
		got, err := Parse(c.text)
		if err != nil || got.Bytes != c.bytes || got.Tokens != c.tokens {
			t.Errorf("Parse(%q) = %+v, %v", c.text, got, err)
		}
	}
}

func TestParseRefuses(t *testing.T) {
	for text, want := range map[string]string{
		"": "not a size", "GiB": "not a size", "many": "not a size", "12 parsecs": "not a size", "-1GiB": "negative", "-5tok": "negative",
		"9223372036854775808": "2^63 or more", "8388608TiB": "2^63 or more", "99999999999999999999": "2^63 or more",
		"1e300": "not a size", "99999999999999999999.5TiB": "2^63", "1.5": "whole number", "1.5tok": "whole number",
		"1.2.3GiB": "whole number", "--1": "negative", "1-2": "not a whole", "0x10": "not a size", "NaN": "not a size", "Inf": "not a size",
	} {
		got, err := Parse(text)
		if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), text) {
			t.Errorf("Parse(%q) = %+v, %v; want an error with %q", text, got, err, want)
		}
	}
}

func TestFormat(t *testing.T) {
	for bytes, want := range map[int64]string{0: "0 B", 1023: "1023 B", 1536: "1.5 KiB", 40 << 30: "40 GiB", 1023 << 20: "1023 MiB", -2048: "-2 KiB"} {
		if got := Format(bytes); got != want {
			t.Errorf("Format(%d) = %q, want %q", bytes, got, want)
		}
	}
}
