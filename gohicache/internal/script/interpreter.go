package script

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/hicache/hicache/ffi"
	hicache "github.com/hicache/hicache/gohicache"
)

// An Interpreter runs blocks one after the other on one engine and one cache. It is not safe for several goroutines.
type Interpreter struct {
	// Library is the path of libhicache.so; empty: where the loader looks.
	Library string
	// Verbose adds the numbers and the library's sentence to errors. Goldens leave them out: sentences may be improved.
	Verbose bool

	engine  *ffi.Engine
	pools   []poolState
	names   map[string]*binding
	stamps  map[uint64]string // What stamped pages say, to name the wrong one.
	tickets map[uint64]string // Names of tickets, for completions.
	holding []*binding        // Everything that was ever held, so that closing can give it back.
	holds   bool              // Transfers wait for run.

	cache     *cacheState
	temporary string // Folder of storage=temporary.
}

// NewInterpreter returns one without an engine; the first command must open one. Close it.
func NewInterpreter() *Interpreter {
	return &Interpreter{names: map[string]*binding{}, stamps: map[uint64]string{}}
}

// A command is one verb of the language. Usage and About are the text of `help` and of the table in docs/SCRIPT.md.
type command struct {
	name  string
	usage string
	about string
	run   func(*Interpreter, *call) error
}

// Commands lists the language's verbs in the order of their documentation.
func Commands() []string {
	names := make([]string, len(commands))
	for i := range commands {
		names[i] = commands[i].name
	}
	return names
}

func find(name string) *command {
	for i := range commands {
		if commands[i].name == name {
			return &commands[i]
		}
	}
	return nil
}

// A Result is the answer to one block.
type Result struct {
	Line    int            `json:"line"`
	Command string         `json:"command"`
	Output  string         `json:"output"`
	Values  map[string]any `json:"values,omitempty"`
	Failed  bool           `json:"failed"` // The command reported an error.
	OK      bool           `json:"ok"`     // As expected: the compared output, or no error where nothing is compared.
}

// Run executes one block. An error of the library is an output like any other ("error: NO_CAPACITY ..."), so a script can expect it; so
// is a misused command.
func (in *Interpreter) Run(b *Block) Result {
	c := newCall(b)
	err := in.dispatch(c)
	if err != nil {
		c.out.line("error: %s", in.describe(err))
	}
	r := Result{Line: b.Line, Command: b.Command, Output: c.out.lines(), Values: c.out.values, Failed: err != nil}
	r.OK = err == nil
	if b.Compared {
		r.OK = r.Output == strings.TrimRight(b.Expected, " \t\n")
	}
	return r
}

func (in *Interpreter) dispatch(c *call) error {
	verb := find(c.block.Command)
	if verb == nil {
		return fmt.Errorf("no command %q; help lists them", c.block.Command)
	}
	if len(c.block.Input) > 0 && !strings.Contains(verb.usage, "\n") {
		return fmt.Errorf("%s takes no input lines", verb.name)
	}
	return verb.run(in, c)
}

// describe prints an error of the library by its status and numbers.
func (in *Interpreter) describe(err error) string {
	var public *hicache.Error
	if errors.As(err, &public) && !in.Verbose && public.Err != nil {
		return strings.TrimPrefix(public.Err.Error(), "hicache: ")
	}
	var e *ffi.Error
	if !errors.As(err, &e) {
		return err.Error()
	}
	var b strings.Builder
	b.WriteString(e.Status.String())
	if e.Pool != ffi.NoPool && int(e.Pool) < len(in.pools) {
		fmt.Fprintf(&b, " pool %s", in.pools[e.Pool].name)
	}
	if !in.Verbose {
		return e.Status.String()
	}
	if e.Need != 0 {
		fmt.Fprintf(&b, " need %d B have %d B pending %d B", e.Need, e.Have, e.Pending)
	}
	if e.Ticket != 0 {
		fmt.Fprintf(&b, " ticket %s", in.ticketName(uint64(e.Ticket)))
	}
	if e.Message != "" {
		fmt.Fprintf(&b, ": %s", e.Message)
	}
	return b.String()
}

// Close ends the engine and the cache, giving back whatever the script still held.
func (in *Interpreter) Close() error {
	err := errors.Join(in.closeCache(), in.closeEngine())
	if in.temporary != "" {
		err = errors.Join(err, os.RemoveAll(in.temporary))
	}
	return err
}

func (in *Interpreter) setVerbose(c *call) error {
	on := c.word("on or off")
	if err := c.done(); err != nil {
		return err
	}
	if on != "on" && on != "off" {
		return fmt.Errorf("verbose is on or off, not %q", on)
	}
	in.Verbose = on == "on"
	return nil
}

func (in *Interpreter) help(c *call) error {
	name, one := c.positional()
	if err := c.done(); err != nil {
		return err
	}
	for i := range commands {
		switch verb := &commands[i]; {
		case one && verb.name == name:
			c.out.line("%s", verb.usage)
			c.out.line("  %s", verb.about)
			return nil
		case !one:
			c.out.line("%-15s %s", verb.name, verb.about)
		}
	}
	if one {
		return fmt.Errorf("no command %q", name)
	}
	return nil
}
