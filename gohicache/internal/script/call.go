package script

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// A call gives a command's handler its arguments. The first bad argument is kept, and reported by done together with the arguments
// that nobody asked for: a misspelt option is an error, never ignored.
type call struct {
	block *Block
	used  []bool
	err   error
	out   output
}

func newCall(b *Block) *call { return &call{block: b, used: make([]bool, len(b.Args))} }

func (c *call) fail(format string, args ...any) {
	if c.err == nil {
		c.err = fmt.Errorf(format, args...)
	}
}

// done returns the first complaint about the arguments.
func (c *call) done() error {
	for i, used := range c.used {
		if !used && c.err == nil {
			c.fail("%q is not an argument of %s", c.block.Args[i].text(), c.block.Command)
		}
	}
	return c.err
}

func (a Arg) text() string {
	text := strings.Join(a.Values, ",")
	if a.Key != "" {
		text = a.Key + "=" + text
	}
	return text
}

// positional returns the next unused argument without a key.
func (c *call) positional() (string, bool) {
	for i, arg := range c.block.Args {
		if arg.Key == "" && !c.used[i] {
			c.used[i] = true
			return arg.Values[0], true
		}
	}
	return "", false
}

// word is positional for an argument that must be there.
func (c *call) word(what string) string {
	word, ok := c.positional()
	if !ok {
		c.fail("%s needs %s", c.block.Command, what)
	}
	return word
}

// words returns all remaining positional arguments.
func (c *call) words() []string {
	var words []string
	for word, ok := c.positional(); ok; word, ok = c.positional() {
		words = append(words, word)
	}
	return words
}

// flag reports whether the bare word is there.
func (c *call) flag(name string) bool {
	for i, arg := range c.block.Args {
		if arg.Key == "" && arg.Values[0] == name && !c.used[i] {
			c.used[i] = true
			return true
		}
	}
	return false
}

// list returns the values of key, or nil.
func (c *call) list(key string) []string {
	for i, arg := range c.block.Args {
		if arg.Key == key && !c.used[i] {
			c.used[i] = true
			return arg.Values
		}
	}
	return nil
}

func (c *call) value(key, fallback string) string {
	values := c.list(key)
	if values == nil {
		return fallback
	}
	if len(values) != 1 {
		c.fail("%s takes one value", key)
		return fallback
	}
	return values[0]
}

// keyed returns the remaining key=value arguments in order, e.g. the pools of a demand.
func (c *call) keyed() []Arg {
	var rest []Arg
	for i, arg := range c.block.Args {
		if arg.Key != "" && !c.used[i] {
			c.used[i] = true
			rest = append(rest, arg)
		}
	}
	return rest
}

// uint reads an unsigned number; size also takes KiB, MiB, GiB.
func (c *call) uint(key string, fallback uint64) uint64 {
	text := c.value(key, "")
	if text == "" {
		return fallback
	}
	n, err := parseSize(text)
	if err != nil {
		c.fail("%s: %v", key, err)
	}
	return n
}

func (c *call) uint32(key string, fallback uint32) uint32 {
	n := c.uint(key, uint64(fallback))
	if n > math.MaxUint32 {
		c.fail("%s: %d does not fit 32 bits", key, n)
	}
	return uint32(n)
}

// choice maps one of the named values to its number.
func (c *call) choice(key, fallback string, values map[string]uint32) uint32 {
	text := c.value(key, fallback)
	n, ok := values[text]
	if !ok {
		c.fail("%s: %q is none of %s", key, text, strings.Join(sortedKeys(values), ", "))
	}
	return n
}

var sizeUnits = map[string]uint64{"": 1, "B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}

func parseSize(text string) (uint64, error) {
	digits := strings.TrimRight(text, "BKMGTi")
	unit, ok := sizeUnits[text[len(digits):]]
	if !ok {
		return 0, fmt.Errorf("%q: the unit is none of B, KiB, MiB, GiB, TiB", text)
	}
	n, err := strconv.ParseUint(digits, 10, 64)
	if err != nil {
		return 0, fmt.Errorf("%q is not a number", text)
	}
	if n > math.MaxUint64/unit {
		return 0, fmt.Errorf("%q does not fit 64 bits", text)
	}
	return n * unit, nil
}

// parseRange reads "7", "4..11" or "x" forms of numbers: a number or an inclusive range.
func parseRange(text string) (first, last uint64, err error) {
	low, high, found := strings.Cut(text, "..")
	if first, err = strconv.ParseUint(low, 10, 64); err != nil {
		return 0, 0, fmt.Errorf("%q is not a number or a range a..b", text)
	}
	if !found {
		return first, first, nil
	}
	if last, err = strconv.ParseUint(high, 10, 64); err != nil || last < first {
		return 0, 0, fmt.Errorf("%q is not a range a..b with a <= b", text)
	}
	if last-first >= 1<<24 {
		return 0, 0, fmt.Errorf("%q is too long", text)
	}
	return first, last, nil
}

// parseNumbers expands a list of numbers and ranges.
func parseNumbers(words []string) ([]uint32, error) {
	var numbers []uint32
	for _, word := range words {
		first, last, err := parseRange(word)
		if err != nil {
			return nil, err
		}
		if last > math.MaxUint32 {
			return nil, fmt.Errorf("%q does not fit 32 bits", word)
		}
		for n := first; n <= last; n++ {
			numbers = append(numbers, uint32(n))
		}
	}
	return numbers, nil
}
