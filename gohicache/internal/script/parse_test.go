package script

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

const sample = `# a comment
open device=4096 page-tokens=4 # said at the end
  full role=full k=16
----
full: down

alloc x full=2 swa=(a, b[0:2], 3..5)
table
----
one
two
`

func TestParse(t *testing.T) {
	f, err := Parse("sample", sample)
	if err != nil {
		t.Fatal(err)
	}
	want := []Block{
		{Line: 2, Command: "open", Args: []Arg{{"device", []string{"4096"}}, {"page-tokens", []string{"4"}}}, Input: []string{"full role=full k=16"},
			InputLine: 3, Compared: true, Expected: "full: down"},
		{Line: 7, Command: "alloc", Args: []Arg{{"", []string{"x"}}, {"full", []string{"2"}}, {"swa", []string{"a", "b[0:2]", "3..5"}}}, InputLine: 8},
		{Line: 8, Command: "table", Args: []Arg{}, InputLine: 9, Compared: true, Expected: "one\ntwo"},
	}
	if diff := cmp.Diff(want, f.Blocks, cmpopts.IgnoreUnexported(Block{})); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

func TestRewriteChangesOutputsOnly(t *testing.T) {
	f, err := Parse("sample", sample)
	if err != nil {
		t.Fatal(err)
	}
	got := f.Rewrite([]string{"full: up", "ignored", ""})
	want := strings.Replace(strings.Replace(sample, "full: down", "full: up", 1), "one\ntwo\n", "", 1)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	again, err := Parse("sample", got)
	if err != nil {
		t.Fatal(err)
	}
	if same := again.Rewrite([]string{"full: up", "", ""}); same != got {
		t.Errorf("a second rewrite changed the script:\n%s", same)
	}
}

func TestParseErrorsNameTheLine(t *testing.T) {
	for _, tt := range []struct{ text, want string }{
		{"  input", "s:1: an indented line"},
		{"verify\n\n----\nok", `s:3: "----" without a command`},
		{"alloc x full=(1", "s:1: a parenthesis is not closed"},
		{"alloc x full=1)", "s:1: column 15: unmatched"},
		{"alloc x full=((1))", "s:1: column 15: unmatched or nested"},
		{"\nalloc =3", `s:2: "=3": no name`},
		{"alloc full=(1)2", `text after ')'`},
	} {
		_, err := Parse("s", tt.text)
		if err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%q: got %v, want %q", tt.text, err, tt.want)
		}
	}
}

// Misused commands are errors that say what is wrong, with no engine open and nothing changed.
func TestMisuse(t *testing.T) {
	for _, tt := range []struct{ text, want string }{
		{"allocate x", `no command "allocate"`},
		{"alloc x full=1", "no engine is open"},
		{"verify now", `"now" is not an argument of verify`},
		{"verify\n  input", "verify takes no input lines"},
		{"open device=4KB\n  full", "unit is none of"},
		{"open device=99999999999999999999\n  full", "is not a number"},
		{"open device=17179869184GiB\n  full", "does not fit 64 bits"},
		{"open device=4096", "one indented line a pool"},
		{"open device=4096\n  full role=fulll", `"fulll" is none of full, state, swa`},
		{"open device=4096\n  full window=5000000000", "does not fit 32 bits"},
		{"open device=4096 colour=red\n  full", `"colour=red" is not an argument`},
		{"cancel r", `"r" was never defined`},
		{"help nothing", `no command "nothing"`},
	} {
		f, err := Parse("s", tt.text)
		if err != nil {
			t.Fatalf("%q: %v", tt.text, err)
		}
		r := NewInterpreter().Run(&f.Blocks[0])
		if !r.Failed || !strings.Contains(r.Output, tt.want) {
			t.Errorf("%q: got %q, want %q", tt.text, r.Output, tt.want)
		}
	}
}

func TestPromptTakesInputLines(t *testing.T) {
	var out, errOut strings.Builder
	code := Main(nil, Options{}, strings.NewReader("# pasted\nhelp poll\n----\nold output\n\nopen device=4096\n  full colour=red\n----\n\nhelp fits\n"), &out, &errOut)
	for _, want := range []string{"reads completions", `"colour=red" is not an argument of full`, "whether a take would succeed"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%q is missing in\n%s", want, out.String())
		}
	}
	if code != 0 || errOut.Len() != 0 {
		t.Errorf("code %d, %q", code, errOut.String())
	}
}

func TestSnakeNamesCountersAsTheHeaderDoes(t *testing.T) {
	for goName, want := range map[string]string{"H2DBytes": "h2d_bytes", "MovesDuringTransfer": "moves_during_transfer", "Moves": "moves",
		"ClockNs": "clock_ns", "FenceWaitsTakes": "fence_waits_takes"} {
		if got := snake(goName); got != want {
			t.Errorf("%s: got %s, want %s", goName, got, want)
		}
	}
}
