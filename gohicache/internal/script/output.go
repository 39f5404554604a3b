package script

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// output is what a command says: text for people and goldens, named values for --json.
type output struct {
	text   strings.Builder
	values map[string]any
}

// line writes one line of text.
func (o *output) line(format string, args ...any) {
	fmt.Fprintf(&o.text, format, args...)
	o.text.WriteByte('\n')
}

// set records a value for --json.
func (o *output) set(key string, value any) {
	if o.values == nil {
		o.values = map[string]any{}
	}
	o.values[key] = value
}

// lines returns the text without trailing and blank lines: a blank line would end the output in a script.
func (o *output) lines() string {
	var kept []string
	for _, line := range strings.Split(o.text.String(), "\n") {
		if line = strings.TrimRight(line, " \t"); line != "" {
			kept = append(kept, line)
		}
	}
	return strings.Join(kept, "\n")
}

func sortedKeys[K cmp.Ordered, V any](m map[K]V) []K {
	keys := make([]K, 0, len(m))
	for key := range m {
		keys = append(keys, key)
	}
	slices.Sort(keys)
	return keys
}

// ranges prints numbers in their order, with runs that ascend by one as a..b: "4..11 3".
func ranges(numbers []uint32) string {
	if len(numbers) == 0 {
		return "none"
	}
	var parts []string
	for i := 0; i < len(numbers); {
		j := i
		for j+1 < len(numbers) && numbers[j+1] == numbers[j]+1 {
			j++
		}
		switch {
		case j-i >= 2:
			parts = append(parts, fmt.Sprintf("%d..%d", numbers[i], numbers[j]))
			i = j + 1
		default:
			parts = append(parts, fmt.Sprint(numbers[i]))
			i++
		}
	}
	return strings.Join(parts, " ")
}

// tokensOf prints the token ids of virtual pages: page v holds tokens v*page_tokens onward.
func tokensOf(pages []uint32, pageTokens uint32) string {
	if len(pages) == 0 {
		return "none"
	}
	tokens := make([]uint32, 0, len(pages)*int(pageTokens))
	for _, page := range pages {
		for t := uint32(0); t < pageTokens; t++ {
			tokens = append(tokens, page*pageTokens+t)
		}
	}
	return ranges(tokens)
}

func count(n uint64, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}
