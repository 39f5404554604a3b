package cli

import (
	"bytes"
	"io"
	"strings"
	"testing"

	"github.com/hicache/hicache/gohicache/cmd/hicache/internal/size"
)

type options struct {
	n    int
	seed uint64
	name string
	json bool
	host size.Size
	odd  uint64
}

func flags(o *options) *Flags {
	f := NewFlags("try", "[options]", "Tries.", 1)
	f.Group("what")
	f.Int(&o.n, "limit", "requests", 5, "stop after so many")
	f.Uint64(&o.seed, "seed", "number", 1, "seed of everything random")
	f.String(&o.name, "report", "FILE", "", "write a | report")
	f.Bool(&o.json, "json", "print JSON")
	f.Var(&o.host, "host", "SIZE", "0", "host tier")
	f.HiddenUint64(&o.odd, "odd")
	return f
}

func TestParse(t *testing.T) {
	var o options
	f := flags(&o)
	exit, done := f.Parse([]string{"--limit", "7", "-json", "--host=2GiB", "--odd", "3", "FILE"}, io.Discard, io.Discard)
	if done || exit != OK || o.n != 7 || !o.json || o.host.Bytes != 2<<30 || o.odd != 3 || o.seed != 1 || f.Args()[0] != "FILE" {
		t.Errorf("exit %d, done %v, %+v", exit, done, o)
	}
	if !f.Given("limit") || f.Given("seed") {
		t.Error("Given is wrong")
	}
}

func TestWrongOptionsAreNamed(t *testing.T) {
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"--limt", "1"}, "option --limt is not known; did you mean --limit?"},
		{[]string{"--frobnicate"}, "option --frobnicate is not known; see"},
		{[]string{"--limit"}, "option --limit needs a value: requests"},
		{[]string{"--limit", "many"}, `option --limit: "many" is not requests`},
		{[]string{"--seed", "-1"}, `option --seed: "-1" is not number`},
		{[]string{"--host", "big"}, `option --host: size "big": is not a size`},
		{[]string{"--json=maybe"}, `option --json: "maybe" is not a switch`},
		{[]string{"a", "b"}, `unexpected argument "b"`},
	} {
		var o options
		var errOut bytes.Buffer
		exit, done := flags(&o).Parse(c.args, io.Discard, &errOut)
		if !done || exit != Usage || !strings.Contains(errOut.String(), c.want) || !strings.Contains(errOut.String(), "hicache try") {
			t.Errorf("%v: exit %d, %q; want %q", c.args, exit, errOut.String(), c.want)
		}
	}
}

func TestHelpSaysUnitAndDefault(t *testing.T) {
	var o options
	var out bytes.Buffer
	if exit, done := flags(&o).Parse([]string{"--help"}, &out, io.Discard); !done || exit != OK {
		t.Error("help is no error")
	}
	for _, want := range []string{"--limit requests\n", "(default 5)", "(default none)", "what:", "exit codes:", "usage: hicache try [options]"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("help lacks %q:\n%s", want, out.String())
		}
	}
	if strings.Contains(out.String(), "odd") {
		t.Error("a hidden option is listed")
	}
	out.Reset()
	flags(&o).WriteMarkdown(&out)
	if !strings.Contains(out.String(), "| `--report` | FILE | none | write a \\| report |") {
		t.Errorf("markdown:\n%s", out.String())
	}
}

func TestDispatch(t *testing.T) {
	commands := []Command{{Name: "one", Summary: "does one", Options: func() *Flags { return flags(&options{}) },
		Run: func(args []string, _ io.Reader, out, _ io.Writer) int {
			io.WriteString(out, strings.Join(args, "+"))
			return 7
		}}}
	for _, c := range []struct {
		args      []string
		exit      int
		out, errs string
	}{
		{[]string{"one", "a", "b"}, 7, "a+b", ""},
		{[]string{"help", "one"}, 7, "--help", ""},
		{[]string{"help"}, OK, "does one", ""},
		{[]string{"help", "--markdown"}, OK, "### hicache try", ""},
		{[]string{"--help"}, OK, "exit codes", ""},
		{nil, Usage, "", "commands:"},
		{[]string{"two"}, Usage, "", `command "two" is not known: want one of one`},
	} {
		var out, errOut bytes.Buffer
		exit := Dispatch(commands, "about", c.args, nil, &out, &errOut)
		if exit != c.exit || !strings.Contains(out.String(), c.out) || !strings.Contains(errOut.String(), c.errs) {
			t.Errorf("%v: exit %d, out %q, err %q", c.args, exit, out.String(), errOut.String())
		}
	}
}
