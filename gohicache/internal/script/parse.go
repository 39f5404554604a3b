// Package script is the small language of `hicache script`: commands over one engine and one cache, in the datadriven form (a command,
// "----", the output it must give). The command-line tool, the tests and the examples of docs/SCRIPT.md run the same parser and the
// same interpreter, so a bug report is a test as it stands.
package script

import (
	"fmt"
	"strings"
)

// An Arg is one word of a command: positional (Key empty, one value) or key=value, or key=(a, b, c).
type Arg struct {
	Key    string
	Values []string
}

// A Block is one command with its input and, if the file states one, the output that it must give.
type Block struct {
	Line      int // Of the command, from 1.
	Command   string
	Args      []Arg
	Input     []string // Indented lines under the command, trimmed.
	InputLine int      // Of the first input line.
	Compared  bool     // There is a "----".
	Expected  string   // Lines under it, joined by newlines, without the last newline.

	outputFirst, outputEnd int // Half-open range of line indices of Expected.
}

// A File is a parsed script. Its lines are kept, so that a rewrite changes nothing but outputs.
type File struct {
	Name   string
	Blocks []Block
	lines  []string
}

const separator = "----"

// Parse reads a whole script. Lines that start with '#' and blank lines between blocks are comments.
func Parse(name, text string) (*File, error) {
	f := &File{Name: name, lines: strings.Split(strings.TrimSuffix(text, "\n"), "\n")}
	for i := 0; i < len(f.lines); {
		line := f.lines[i]
		switch {
		case strings.TrimSpace(line) == "" || strings.HasPrefix(line, "#"):
			i++
		case isIndented(line):
			return nil, fmt.Errorf("%s:%d: an indented line is input, and there is no command above it", name, i+1)
		case line == separator:
			return nil, fmt.Errorf("%s:%d: %q without a command above it", name, i+1, separator)
		default:
			next, err := f.parseBlock(i)
			if err != nil {
				return nil, err
			}
			i = next
		}
	}
	return f, nil
}

func isIndented(line string) bool {
	return strings.HasPrefix(line, " ") || strings.HasPrefix(line, "\t")
}

// parseBlock reads the block whose command is line i and returns the index of the line after it.
func (f *File) parseBlock(i int) (int, error) {
	b := Block{Line: i + 1, InputLine: i + 2}
	var err error
	if b.Command, b.Args, err = parseCommand(f.lines[i]); err != nil {
		return 0, fmt.Errorf("%s:%d: %w", f.Name, i+1, err)
	}
	i++
	for i < len(f.lines) && isIndented(f.lines[i]) && strings.TrimSpace(f.lines[i]) != "" {
		b.Input = append(b.Input, strings.TrimSpace(f.lines[i]))
		i++
	}
	if i < len(f.lines) && f.lines[i] == separator {
		b.Compared = true
		i++
		b.outputFirst = i
		for i < len(f.lines) && strings.TrimSpace(f.lines[i]) != "" {
			i++
		}
		b.outputEnd = i
		b.Expected = strings.Join(f.lines[b.outputFirst:i], "\n")
	}
	f.Blocks = append(f.Blocks, b)
	return i, nil
}

// parseCommand splits a command line into its name and arguments. A trailing comment starts with " #".
func parseCommand(line string) (string, []Arg, error) {
	if at := strings.Index(line, " #"); at >= 0 {
		line = line[:at]
	}
	words, err := splitWords(line)
	if err != nil {
		return "", nil, err
	}
	if len(words) == 0 {
		return "", nil, fmt.Errorf("no command")
	}
	args := make([]Arg, 0, len(words)-1)
	for _, word := range words[1:] {
		arg, err := parseArg(word)
		if err != nil {
			return "", nil, err
		}
		args = append(args, arg)
	}
	return words[0], args, nil
}

// splitWords cuts at white space outside parentheses.
func splitWords(line string) ([]string, error) {
	var words []string
	start, depth := -1, 0
	for i, r := range line {
		switch {
		case r == '(':
			depth++
		case r == ')':
			depth--
		}
		if depth < 0 || depth > 1 {
			return nil, fmt.Errorf("column %d: unmatched or nested parenthesis", i+1)
		}
		space := depth == 0 && (r == ' ' || r == '\t')
		if !space && start < 0 {
			start = i
		} else if space && start >= 0 {
			words = append(words, line[start:i])
			start = -1
		}
	}
	if depth != 0 {
		return nil, fmt.Errorf("a parenthesis is not closed")
	}
	if start >= 0 {
		words = append(words, line[start:])
	}
	return words, nil
}

func parseArg(word string) (Arg, error) {
	key, value, found := strings.Cut(word, "=")
	if !found {
		return Arg{Values: []string{word}}, nil
	}
	if key == "" {
		return Arg{}, fmt.Errorf("%q: no name before '='", word)
	}
	if !strings.HasPrefix(value, "(") {
		return Arg{Key: key, Values: []string{value}}, nil
	}
	if !strings.HasSuffix(value, ")") {
		return Arg{}, fmt.Errorf("%q: text after ')'", word)
	}
	values := strings.FieldsFunc(value[1:len(value)-1], func(r rune) bool { return r == ',' || r == ' ' || r == '\t' })
	return Arg{Key: key, Values: values}, nil
}

// Rewrite returns the script with the outputs of all compared blocks replaced; outputs has one entry a block.
func (f *File) Rewrite(outputs []string) string {
	var out []string
	from := 0
	for i, b := range f.Blocks {
		if !b.Compared {
			continue
		}
		out = append(out, f.lines[from:b.outputFirst]...)
		if outputs[i] != "" {
			out = append(out, strings.Split(outputs[i], "\n")...)
		}
		from = b.outputEnd
	}
	out = append(out, f.lines[from:]...)
	return strings.Join(out, "\n") + "\n"
}
