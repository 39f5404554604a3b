// Package cli is the frame of the hicache program's commands: the command table's row, options that say their unit and default, and exit codes.
package cli

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"sort"
	"strings"
)

// Exit codes of every command.
const (
	OK          = 0   // did what was asked; also when a replay went on without its storage (degraded)
	CheckFailed = 1   // a check found something wrong: a content mismatch, a broken invariant
	Usage       = 2   // an option or an input is wrong; nothing was run
	Failed      = 3   // what was asked could not be done or stopped half-way
	Interrupted = 130 // Ctrl-C or SIGTERM; the partial result was written
)

// ExitCodes documents the exit codes, for help texts.
const ExitCodes = `exit codes:
  0    done; also when a replay had to go on without storage ("degraded" in the result)
  1    a check failed: a content mismatch, a broken invariant
  2    an option or an input is wrong; nothing was run
  3    could not be done, or stopped half-way by an error
  130  interrupted (Ctrl-C, SIGTERM); the partial result was written
`

// Command is a row of the program's command table. Run gets the arguments after the command's name and returns the exit code.
type Command struct {
	Name    string
	Summary string
	Run     func(args []string, in io.Reader, out, errOut io.Writer) int
	Options func() *Flags // for the generated documentation; may be nil
}

// Flags are a command's options. Every option says its unit or form and its default.
type Flags struct {
	command string
	usage   string // after the command's name
	about   string
	set     *flag.FlagSet
	rows    []row
	maxArgs int
}

type row struct {
	name, form, def, help string
	group                 string
}

// NewFlags starts the options of a command. usage is what follows the command's name in the usage line; maxArgs is how many arguments that
// are no options it takes.
func NewFlags(command, usage, about string, maxArgs int) *Flags {
	f := &Flags{command: command, usage: usage, about: about, set: flag.NewFlagSet(command, flag.ContinueOnError), maxArgs: maxArgs}
	f.set.SetOutput(io.Discard)
	f.set.Usage = func() {}
	return f
}

// Group starts a heading; options added from here on stand under it.
func (f *Flags) Group(heading string) { f.rows = append(f.rows, row{group: heading}) }

func (f *Flags) add(name, form, def, help string) {
	f.rows = append(f.rows, row{name: name, form: form, def: def, help: help})
}

// String adds an option; form is its unit or what it may be.
func (f *Flags) String(p *string, name, form, def, help string) {
	f.set.StringVar(p, name, def, "")
	f.add(name, form, def, help)
}

// Int adds a whole-number option.
func (f *Flags) Int(p *int, name, form string, def int, help string) {
	f.set.IntVar(p, name, def, "")
	f.add(name, form, fmt.Sprint(def), help)
}

// Uint64 adds a whole-number option that is not negative.
func (f *Flags) Uint64(p *uint64, name, form string, def uint64, help string) {
	f.set.Uint64Var(p, name, def, "")
	f.add(name, form, fmt.Sprint(def), help)
}

// Bool adds a switch.
func (f *Flags) Bool(p *bool, name, help string) {
	f.set.BoolVar(p, name, false, "")
	f.add(name, "", "off", help)
}

// Var adds an option with a type of its own; def documents its default.
func (f *Flags) Var(v flag.Value, name, form, def, help string) {
	f.set.Var(v, name, "")
	f.add(name, form, def, help)
}

// HiddenUint64 adds an option that help does not list, for the project's own tests.
func (f *Flags) HiddenUint64(p *uint64, name string) { f.set.Uint64Var(p, name, 0, "") }

// Given says whether an option was on the command line.
func (f *Flags) Given(name string) bool {
	given := false
	f.set.Visit(func(o *flag.Flag) { given = given || o.Name == name })
	return given
}

// Args are the arguments that are no options.
func (f *Flags) Args() []string { return f.set.Args() }

// Parse reads the arguments. When done is true the command returns exit: help was asked for and printed, or an option is wrong and was
// named on errOut.
func (f *Flags) Parse(args []string, out, errOut io.Writer) (exit int, done bool) {
	err := f.set.Parse(args)
	switch {
	case errors.Is(err, flag.ErrHelp):
		f.WriteHelp(out)
		return OK, true
	case err != nil:
		fmt.Fprintf(errOut, "hicache %s: %s\n", f.command, f.explain(err))
		return Usage, true
	case f.set.NArg() > f.maxArgs:
		fmt.Fprintf(errOut, "hicache %s: unexpected argument %q; see hicache %s --help\n", f.command, f.set.Arg(f.maxArgs), f.command)
		return Usage, true
	}
	return OK, false
}

// explain rewrites the flag package's errors in our words: the option with two dashes, and a near name for one that is not known.
func (f *Flags) explain(err error) string {
	text := err.Error()
	if name, ok := strings.CutPrefix(text, "flag provided but not defined: -"); ok {
		text = fmt.Sprintf("option --%s is not known", name)
		if near := f.nearest(name); near != "" {
			return text + fmt.Sprintf("; did you mean --%s? See hicache %s --help", near, f.command)
		}
		return text + "; see hicache " + f.command + " --help"
	}
	if name, ok := strings.CutPrefix(text, "flag needs an argument: -"); ok {
		return fmt.Sprintf("option --%s needs a value: %s", name, f.form(name))
	}
	for _, kind := range []string{"invalid value ", "invalid boolean value "} {
		rest, ok := strings.CutPrefix(text, kind)
		if !ok {
			continue
		}
		value, after, _ := strings.Cut(rest, " for ")
		after = strings.TrimPrefix(strings.TrimPrefix(after, "flag -"), "-")
		name, why, _ := strings.Cut(after, ": ")
		if why == "parse error" || why == "value out of range" || strings.Contains(why, "strconv") {
			return fmt.Sprintf("option --%s: %s is not %s", name, value, f.form(name))
		}
		return fmt.Sprintf("option --%s: %s", name, why)
	}
	return text
}

func (f *Flags) form(name string) string {
	for _, r := range f.rows {
		if r.name == name && r.form != "" {
			return r.form
		}
	}
	return "a switch: true or false"
}

func (f *Flags) nearest(name string) string {
	best, at := "", 3
	for _, r := range f.rows {
		if d := distance(name, r.name); r.name != "" && d < at {
			best, at = r.name, d
		}
	}
	return best
}

// distance is the edit distance of two names.
func distance(a, b string) int {
	prev := make([]int, len(b)+1)
	for j := range prev {
		prev[j] = j
	}
	for i := range len(a) {
		diagonal := prev[0]
		prev[0] = i + 1
		for j := range len(b) {
			cost := diagonal
			if a[i] != b[j] {
				cost++
			}
			diagonal = prev[j+1]
			prev[j+1] = min(cost, prev[j]+1, prev[j+1]+1)
		}
	}
	return prev[len(b)]
}

// WriteHelp prints the usage, what the command does, its options and the exit codes.
func (f *Flags) WriteHelp(out io.Writer) {
	fmt.Fprintf(out, "usage: hicache %s %s\n\n%s\n", f.command, f.usage, f.about)
	for _, r := range f.rows {
		switch {
		case r.group != "":
			fmt.Fprintf(out, "\n%s:\n", r.group)
		case r.form == "":
			fmt.Fprintf(out, "  --%s\n        %s\n", r.name, r.help)
		default:
			fmt.Fprintf(out, "  --%s %s\n        %s (default %s)\n", r.name, r.form, r.help, orNone(r.def))
		}
	}
	fmt.Fprintf(out, "\n%s", ExitCodes)
}

// WriteMarkdown prints the options as a table.
func (f *Flags) WriteMarkdown(out io.Writer) {
	fmt.Fprintf(out, "### hicache %s\n\n`hicache %s %s`\n\n%s\n\n| option | value | default | what |\n|---|---|---|---|\n", f.command, f.command, f.usage, f.about)
	cell := strings.NewReplacer("|", "\\|", "\n", " ")
	for _, r := range f.rows {
		if r.group == "" {
			fmt.Fprintf(out, "| `--%s` | %s | %s | %s |\n", r.name, cell.Replace(r.form), cell.Replace(orNone(r.def)), cell.Replace(r.help))
		}
	}
	fmt.Fprintln(out)
}

func orNone(def string) string {
	if def == "" {
		return "none"
	}
	return def
}

// Dispatch runs the command that args name.
func Dispatch(commands []Command, about string, args []string, in io.Reader, out, errOut io.Writer) int {
	if len(args) == 0 {
		writeCommands(commands, about, errOut)
		return Usage
	}
	name := args[0]
	switch name {
	case "help", "-h", "-help", "--help":
		if len(args) > 1 && args[1] == "--markdown" {
			for _, c := range commands {
				if c.Options != nil {
					c.Options().WriteMarkdown(out)
				}
			}
			return OK
		}
		if len(args) > 1 {
			return Dispatch(commands, about, []string{args[1], "--help"}, in, out, errOut)
		}
		writeCommands(commands, about, out)
		return OK
	}
	names := make([]string, 0, len(commands))
	for _, c := range commands {
		if c.Name == name {
			return c.Run(args[1:], in, out, errOut)
		}
		names = append(names, c.Name)
	}
	sort.Strings(names)
	fmt.Fprintf(errOut, "hicache: command %q is not known: want one of %s\n", name, strings.Join(names, ", "))
	return Usage
}

func writeCommands(commands []Command, about string, out io.Writer) {
	fmt.Fprintf(out, "%s\n\nusage: hicache COMMAND [options]\n\ncommands:\n", about)
	for _, c := range commands {
		fmt.Fprintf(out, "  %-8s %s\n", c.Name, c.Summary)
	}
	fmt.Fprintf(out, "\nhicache COMMAND --help lists a command's options; hicache help --markdown all of them as tables.\n\n%s", ExitCodes)
}
