package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hicache/hicache/ffi"
	"github.com/hicache/hicache/gohicache/cmd/hicache/internal/cli"
	"github.com/hicache/hicache/gohicache/cmd/hicache/internal/replay"
)

func needLibrary(t *testing.T) {
	t.Helper()
	if _, err := ffi.Load(""); err != nil {
		if os.Getenv("HICACHE_LIBRARY") != "" || errors.Is(err, ffi.ErrABI) {
			t.Fatal(err) // a library that is there and does not fit is a failure
		}
		t.Skipf("SKIPPED, NOT PASSED: %v", err)
	}
}

// small is a run of a second.
func small(more ...string) []string {
	return append(strings.Fields("replay --workload chat --limit 120 --prompt-max 2048 --geometry gemma-3-27b --scale 256 --device 12000tok --host 40000tok"), more...)
}

func decode(t *testing.T, out string) *replay.Result {
	t.Helper()
	r := &replay.Result{}
	if err := json.Unmarshal([]byte(out), r); err != nil {
		t.Fatalf("%v in %q", err, out)
	}
	return r
}

func TestReplayThroughAllTiers(t *testing.T) {
	needLibrary(t)
	folder := t.TempDir()
	page := filepath.Join(folder, "r.html")
	exit, out, errs := run(small("--json", "--storage", filepath.Join(folder, "store")+":64MiB", "--report", page)...)
	r := decode(t, out)
	if exit != cli.OK || errs != "" || r.Requests != 120 || r.Mismatches != 0 || r.PagesVerified == 0 || r.Bytes.StorageWrite == 0 || r.Partial || r.Degraded || !r.VerifyOK {
		t.Fatalf("exit %d, %s\n%s", exit, errs, out)
	}
	if html, err := os.ReadFile(page); err != nil || !bytes.Contains(html, []byte("gemma-3-27b scaled 1:256")) {
		t.Errorf("the report: %v", err)
	}
	// A new process over the same folder gets its hits; this one opens a new cache, which is the same to the store.
	exit, out, _ = run(small("--json", "--storage", filepath.Join(folder, "store"), "--host", "0")...)
	if again := decode(t, out); exit != cli.OK || again.HitTokens.Storage == 0 || again.Prefetches == 0 || again.Mismatches != 0 {
		t.Errorf("the second run over the store: exit %d, %+v", exit, again)
	}
	exit, out, _ = run(small("--storage", filepath.Join(folder, "store"))...)
	for _, want := range []string{"device: 12000tok = 750 full pages", "mismatches", "from storage", "hold"} {
		if exit != cli.OK || !strings.Contains(out, want) {
			t.Errorf("the table lacks %q:\n%s", want, out)
		}
	}
}

func TestReplayGoesOnWithoutStorage(t *testing.T) {
	needLibrary(t)
	file := filepath.Join(t.TempDir(), "a-file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	exit, out, errs := run(small("--json", "--storage", file)...)
	if r := decode(t, out); exit != cli.OK || !r.Degraded || r.DegradedReason == "" || r.Mismatches != 0 || r.Requests != 120 || !strings.Contains(errs, "goes on without storage") {
		t.Errorf("exit %d, %q\n%s", exit, errs, out)
	}
}

func TestReplayOfABadTrace(t *testing.T) {
	needLibrary(t)
	path := filepath.Join(t.TempDir(), "t.jsonl")
	ok := `{"timestamp":0,"input_length":600,"output_length":1,"hash_ids":[1,2]}` + "\n"
	for text, want := range map[string]string{
		"":                     "is empty",
		ok + ok + "{\n":        "line 3: is not JSON",
		ok + `{"timestamp":0}`: "line 2: field input_length: is missing",
	} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		exit, out, errs := run("replay", "--trace", path, "--device", "4096tok", "--host", "0", "--json")
		if exit != cli.Usage || !strings.Contains(errs, want) || !strings.Contains(errs, path) {
			t.Errorf("%q: exit %d, %q", text, exit, errs)
		}
		if strings.HasPrefix(text, ok) { // what ran before the bad line is not lost
			if r := decode(t, out); r.Requests == 0 || r.Error == "" || !r.VerifyOK {
				t.Errorf("%q: %s", text, out)
			}
		}
	}
}

func TestReplayRefuses(t *testing.T) {
	needLibrary(t)
	for _, c := range []struct{ args, want string }{
		{"", "want --trace FILE or --workload"},
		{"--workload chat --trace x", "want one of them"},
		{"--workload party", "party"},
		{"--trace /none", "no such file"},
		{"--workload chat --geometry gpt-2", "option --geometry"},
		{"--workload chat --scale 0", "option --scale"},
		{"--workload chat --pool role=swa,layers=0,row=16,window=64", "option --pool"},
		{"--workload chat --page-tokens 0", "option --page-tokens"},
		{"--workload chat --concurrency 0", "option --concurrency"},
		{"--workload chat --device 0", "a cache needs a device"},
		{"--workload chat --device 9223372036854775808", "2^63"},
		{"--workload chat --device 9000000000000000tok", "2^63"},
		{"--workload chat --device -4GiB", "negative"},
		{"--workload chat --device 1MiB", "can never fit"},
		{"--workload chat --write-policy sometimes", "sometimes"},
		{"--workload chat --write-policy write_back --host 0", "HostBytes"},
		{"--workload chat --eviction best", "best"},
		{"--workload chat --backend tpu", "tpu"},
		{"--workload chat --backend null --storage /tmp/x", "null backend"},
		{"--workload chat --report no/such/folder/x.html", "option --report: no/such/folder/x.html"},
		{"--workload chat --backend fault", "--fault-seed"},
		{"--workload chat --storage x:0GiB", "0 bytes"},
		{"--workload chat --storage x:abc", "ends with a slash"},
		{"--workload chat --storage x:", "ends with a slash"},
		{"--workload chat --storage x:5tok", "want bytes"},
		{"--workload chat --verify most", "option --verify"},
		{"--workload chat --settle down", "option --settle"},
		{"--workload chat --windows some", "option --windows"},
		{"--workload chat --fault-ppm 5", "--fault-seed"},
		{"--trace x --prompt-max 5", "--prompt-max"},
		{"--workload chat --library /etc/passwd", "/etc/passwd"},
		{"--workload chat --sabotage 1", "abotage"},
		{"--workload chat extra", `"extra"`},
	} {
		exit, out, errs := run(append([]string{"replay", "--json"}, strings.Fields(c.args)...)...)
		if exit != cli.Usage || !strings.Contains(errs, c.want) || out != "" {
			t.Errorf("replay %s: exit %d, %q, %q; want %q", c.args, exit, errs, out, c.want)
		}
	}
}

func TestParseStorage(t *testing.T) {
	for text, want := range map[string]struct {
		dir   string
		limit int64
	}{"/a/b": {"/a/b", 0}, "/a/b:2GiB": {"/a/b", 2 << 30}, "/a:b/c": {"/a:b/c", 0}, "/a:7/c": {"/a:7/c", 0}, "c:/": {"c:/", 0}, "x:y/": {"x:y/", 0}} {
		if dir, limit, err := parseStorage(text); err != nil || dir != want.dir || limit != want.limit {
			t.Errorf("%s: %q, %d, %v", text, dir, limit, err)
		}
	}
	if _, _, err := parseStorage("x:5parsecs"); err == nil {
		t.Error("5parsecs was accepted")
	}
}

func TestPlanCommand(t *testing.T) {
	if exit, out, _ := run("plan", "--geometry", "gemma-3-27b"); exit != cli.OK || !strings.Contains(out, "fits: 65536 tokens in all") {
		t.Errorf("exit %d\n%s", exit, out)
	}
	exit, out, _ := run("plan", "--geometry", "gemma-3-27b", "--device", "64MiB", "--json")
	if exit != cli.Usage || !strings.Contains(out, `"feasible": false`) || !strings.Contains(out, "short") {
		t.Errorf("exit %d\n%s", exit, out)
	}
	if exit, _, errs := run("plan", "--request-tokens", "0"); exit != cli.Usage || !strings.Contains(errs, "--request-tokens") {
		t.Errorf("exit %d, %s", exit, errs)
	}
}

func TestDoctorCommand(t *testing.T) {
	needLibrary(t)
	if exit, out, _ := run("doctor"); exit != cli.OK || !strings.Contains(out, "ABI 0.") || !strings.Contains(out, "memory") {
		t.Errorf("exit %d\n%s", exit, out)
	}
	if exit, out, _ := run("doctor", "--json", "--library", "/none"); exit != cli.CheckFailed || !json.Valid([]byte(out)) {
		t.Errorf("exit %d\n%s", exit, out)
	}
}

// The real program is interrupted: it ends with the partial result and its own exit code.
func TestInterrupt(t *testing.T) {
	needLibrary(t)
	bin := filepath.Join(t.TempDir(), "hicache")
	if out, err := exec.Command("go", "build", "-o", bin, ".").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	cmd := exec.Command(bin, strings.Fields("replay --workload agent --limit 1000000 --scale 256 --device 200000tok --host 0 --json")...)
	cmd.Env = append(os.Environ(), "HICACHE_LIBRARY="+libraryPath(t))
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	time.Sleep(2 * time.Second)
	cmd.Process.Signal(syscall.SIGINT)
	err := cmd.Wait()
	var status *exec.ExitError
	if !errors.As(err, &status) || status.ExitCode() != cli.Interrupted {
		t.Fatalf("%v, %s", err, errs.String())
	}
	if r := decode(t, out.String()); !r.Partial || r.Requests == 0 || r.Mismatches != 0 || !r.VerifyOK {
		t.Errorf("%s", out.String())
	}
}

func libraryPath(t *testing.T) string {
	lib, err := ffi.Load("")
	if err != nil {
		t.Fatal(err)
	}
	return lib.Path()
}

// The options' documentation is generated: this test writes it with HICACHE_REWRITE=1 and else compares.
func TestOptionTablesAreCurrent(t *testing.T) {
	const path = "../../../docs/COMMANDS.md"
	_, tables, _ := run("help", "--markdown")
	want := "# Commands of `hicache`\n\nGenerated from the code by `hicache help --markdown`; exit codes are listed by `hicache help`.\n\n" + tables
	if os.Getenv("HICACHE_REWRITE") == "1" {
		if err := os.WriteFile(path, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(path)
	if err != nil || string(got) != want {
		t.Errorf("docs/COMMANDS.md is not what the options say (%v); HICACHE_REWRITE=1 go test writes it", err)
	}
}

func TestProgressText(t *testing.T) {
	text := progressText(replay.Progress{Requests: 500, Fraction: 0.25, Elapsed: 10 * time.Second, PromptTokens: 5e6, HitTokens: 1e6})
	for _, want := range []string{"500 requests", "50/s", "0.50 M tokens/s", "hits 20.0 %", "25 % done", "about 30s left"} {
		if !strings.Contains(text, want) {
			t.Errorf("%q lacks %q", text, want)
		}
	}
}

// A workload and the trace that gen writes of it are the same requests.
func TestATraceOfAWorkloadReplaysAlike(t *testing.T) {
	needLibrary(t)
	path := filepath.Join(t.TempDir(), "t.jsonl.gz")
	if exit, _, errs := run("gen", "--workload", "chat", "--limit", "120", "--prompt-max", "2048", "--out", path); exit != cli.OK {
		t.Fatal(errs)
	}
	_, direct, _ := run(small("--json", "--concurrency", "1")...)
	_, repeated, _ := run(small("--json", "--concurrency", "1")...)
	if a, b := decode(t, direct), decode(t, repeated); a.HitTokens != b.HitTokens || a.Evictions != b.Evictions || a.Bytes != b.Bytes || a.CompactionMoves != b.CompactionMoves {
		t.Errorf("with one open request a run must repeat: %+v and %+v", a, b)
	}
	exit, traced, errs := run("replay", "--json", "--concurrency", "1", "--trace", path, "--geometry", "gemma-3-27b", "--scale", "256", "--device", fmt.Sprint(decode(t, direct).Config.DeviceBytes),
		"--host", fmt.Sprint(decode(t, direct).Config.HostBytes))
	a, b := decode(t, direct), decode(t, traced)
	if exit != cli.OK || a.HitTokens != b.HitTokens || a.PromptTokens != b.PromptTokens || a.OutputTokens != b.OutputTokens || a.HitRateBlocks != b.HitRateBlocks || a.HitTokens.Device == 0 {
		t.Errorf("exit %d, %s: %+v and %+v", exit, errs, a.HitTokens, b.HitTokens)
	}
}
