package script

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func writeScript(t *testing.T, text string) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "a.script")
	if err := os.WriteFile(name, []byte(text), 0o666); err != nil {
		t.Fatal(err)
	}
	return name
}

func runFiles(t *testing.T, o Options, names ...string) (code int, out, errOut string) {
	t.Helper()
	var outText, errText strings.Builder
	code = Main(names, o, strings.NewReader(""), &outText, &errText)
	return code, outText.String(), errText.String()
}

func TestExitCodes(t *testing.T) {
	for _, tt := range []struct {
		name, text string
		code       int
		want       string
	}{
		{"as expected", "verify now\n----\nerror: \"now\" is not an argument of verify\n", 0, "verify now"},
		{"not as expected", "verify\n----\nok\n", 1, "NOT AS EXPECTED, which is\nok"},
		{"fails and is not compared", "verify\n", 1, "FAILED"},
		{"cannot be parsed", "verify (\n", 2, "a parenthesis is not closed"},
	} {
		code, out, errOut := runFiles(t, Options{}, writeScript(t, tt.text))
		if code != tt.code || !strings.Contains(out+errOut, tt.want) {
			t.Errorf("%s: code %d, want %d and %q in\n%s%s", tt.name, code, tt.code, tt.want, out, errOut)
		}
	}
	if code, _, errOut := runFiles(t, Options{}, "no-such.script"); code != 2 || !strings.Contains(errOut, "no-such.script") {
		t.Errorf("a file that is not there: code %d, %q", code, errOut)
	}
}

func TestRewriteFile(t *testing.T) {
	name := writeScript(t, "# kept\nverify\n----\n\nhelp poll\n----\nold\n")
	if code, _, errOut := runFiles(t, Options{Rewrite: true}, name); code != 0 {
		t.Fatalf("code %d: %s", code, errOut)
	}
	got, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	want := "# kept\nverify\n----\nerror: no engine is open\n\nhelp poll\n----\npoll [N]\n  reads completions, which ends their pins\n"
	if string(got) != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

func TestJSONIsOneObjectACommand(t *testing.T) {
	code, out, _ := runFiles(t, Options{JSON: true}, writeScript(t, "verify\n----\nok\n\nhelp poll\n"))
	if code != 1 {
		t.Errorf("code %d, want 1", code)
	}
	lines := strings.Split(strings.TrimSpace(out), "\n")
	if len(lines) != 2 {
		t.Fatalf("%d lines for 2 commands:\n%s", len(lines), out)
	}
	var first struct {
		Line     int
		Command  string
		Output   string
		Expected string
		Failed   bool
		OK       bool
	}
	if err := json.Unmarshal([]byte(lines[0]), &first); err != nil {
		t.Fatal(err)
	}
	if first.Line != 1 || first.Command != "verify" || first.Output != "error: no engine is open" || first.Expected != "ok" || !first.Failed || first.OK {
		t.Errorf("got %+v", first)
	}
}
