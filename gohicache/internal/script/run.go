package script

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
)

// RunFile runs all blocks of a parsed script on a fresh interpreter and returns one result a block; each, if not nil, sees them as they come. The
// interpreter is closed at the end; the error is what closing said.
func RunFile(f *File, library string, each func(*Block, *Result)) ([]Result, error) {
	in := NewInterpreter()
	in.Library = library
	results := make([]Result, len(f.Blocks))
	for i := range f.Blocks {
		results[i] = in.Run(&f.Blocks[i])
		if each != nil {
			each(&f.Blocks[i], &results[i])
		}
	}
	return results, in.Close()
}

// Options of Main.
type Options struct {
	Library string
	Rewrite bool // Write the outputs into the script instead of comparing them.
	JSON    bool // One object a command instead of text.
}

// Main runs script files, or a prompt without any, and returns a process exit code: 0 all as expected, 1 not, 2 a script that cannot be
// read or parsed.
func Main(files []string, o Options, in io.Reader, out, errOut io.Writer) int {
	if len(files) == 0 {
		return prompt(o, in, out, errOut)
	}
	code := 0
	for _, name := range files {
		code = max(code, runNamed(name, o, out, errOut))
	}
	return code
}

func runNamed(name string, o Options, out, errOut io.Writer) int {
	text, err := os.ReadFile(name)
	if err != nil {
		fmt.Fprintln(errOut, "hicache script:", err)
		return 2
	}
	f, err := Parse(name, string(text))
	if err != nil {
		fmt.Fprintln(errOut, err)
		return 2
	}
	code := 0
	each := func(b *Block, r *Result) {
		if o.Rewrite {
			return
		}
		if !r.OK {
			code = 1
		}
		printResult(out, f, b, r, o.JSON)
	}
	results, err := RunFile(f, o.Library, each)
	if err != nil {
		fmt.Fprintf(errOut, "%s: close: %v\n", name, err)
		code = 1
	}
	if o.Rewrite {
		return max(code, rewrite(f, results, errOut))
	}
	return code
}

func rewrite(f *File, results []Result, errOut io.Writer) int {
	outputs := make([]string, len(results))
	code := 0
	for i, r := range results {
		outputs[i] = r.Output
		if !f.Blocks[i].Compared && r.Failed {
			fmt.Fprintf(errOut, "%s:%d: %s: %s\n", f.Name, r.Line, r.Command, r.Output)
			code = 1
		}
	}
	if err := os.WriteFile(f.Name, []byte(f.Rewrite(outputs)), 0o666); err != nil {
		fmt.Fprintln(errOut, "hicache script:", err)
		return 2
	}
	return code
}

// printResult prints a command with its output; one that is not as expected is marked, with both.
func printResult(out io.Writer, f *File, b *Block, r *Result, asJSON bool) {
	if asJSON {
		_ = json.NewEncoder(out).Encode(struct {
			File string `json:"file,omitempty"`
			*Result
			Expected string `json:"expected,omitempty"`
		}{f.Name, r, b.Expected}) // A closed output pipe: there is nobody to tell.
		return
	}
	fmt.Fprintln(out, strings.TrimRight(f.lines[b.Line-1], " "))
	for _, line := range b.Input {
		fmt.Fprintln(out, " ", line)
	}
	if r.Output != "" {
		fmt.Fprintf(out, "%s\n%s\n", separator, r.Output)
	}
	if !r.OK && b.Compared {
		fmt.Fprintf(out, "%s:%d: NOT AS EXPECTED, which is\n%s\n", f.Name, r.Line, b.Expected)
	} else if !r.OK {
		fmt.Fprintf(out, "%s:%d: FAILED\n", f.Name, r.Line)
	}
	fmt.Fprintln(out)
}

// prompt reads commands from in as they come. A command that takes input lines is followed by them, indented, and an empty line.
func prompt(o Options, in io.Reader, out, errOut io.Writer) int {
	i := NewInterpreter()
	i.Library, i.Verbose = o.Library, true
	scanner := bufio.NewScanner(in)
	if !o.JSON {
		fmt.Fprintln(out, "hicache script: help lists the commands; an empty line ends the input of open, load and back-up")
	}
	for {
		if !o.JSON {
			fmt.Fprint(out, "> ")
		}
		text, ok := readCommand(scanner)
		if strings.TrimSpace(text) != "" {
			runTyped(i, text, o.JSON, out, errOut)
		}
		if !ok {
			break
		}
	}
	if err := i.Close(); err != nil {
		fmt.Fprintln(errOut, "close:", err)
		return 1
	}
	return 0
}

// readCommand reads one line, and the lines up to an empty one if the command takes input. Comments and expected outputs are passed over, so
// that a script can be pasted.
func readCommand(scanner *bufio.Scanner) (string, bool) {
	if !scanner.Scan() {
		return "", false
	}
	text := scanner.Text()
	if text == separator {
		for scanner.Scan() && strings.TrimSpace(scanner.Text()) != "" {
		}
		return "", true
	}
	if strings.HasPrefix(text, "#") {
		return "", true
	}
	name, _, err := parseCommand(text)
	if verb := find(name); err != nil || verb == nil || !strings.Contains(verb.usage, "\n") {
		return text, true
	}
	for scanner.Scan() {
		line := scanner.Text()
		if strings.TrimSpace(line) == "" || line == separator {
			for line == separator && scanner.Scan() && strings.TrimSpace(scanner.Text()) != "" {
			}
			return text, true
		}
		text += "\n  " + strings.TrimSpace(line)
	}
	return text, false
}

func runTyped(i *Interpreter, text string, asJSON bool, out, errOut io.Writer) {
	f, err := Parse("prompt", text)
	if err != nil {
		fmt.Fprintln(errOut, err)
		return
	}
	for b := range f.Blocks {
		r := i.Run(&f.Blocks[b])
		if asJSON {
			printResult(out, f, &f.Blocks[b], &r, true)
		} else if r.Output != "" {
			fmt.Fprintln(out, r.Output)
		}
	}
}
