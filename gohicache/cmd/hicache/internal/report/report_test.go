package report

import (
	"bytes"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
)

// example is a made-up run with everything in it.
func example() *Data {
	rng := rand.New(rand.NewPCG(1, 2))
	d := &Data{Title: "hicache replay", Subtitle: "chat on gemma-3-27b / 256, page 16, 4 open",
		Notes: []string{"Partial: interrupted after 4,000 requests."},
		Totals: []Group{
			{Title: "headline", Rows: []Row{{Name: "token hit rate", Value: "81.2 %"}, {Name: "mismatches", Value: "0"}, {Name: "pages verified", Value: "1.2 M"}, {Name: "requests/s", Value: "410"}}},
			{Title: "Hits", Rows: []Row{{Name: "device", Value: "3,000,000 tokens"}, {Name: "host", Value: "1", Note: "loaded back"}, {Name: "<script>alert(1)</script>", Value: "</script>"}}},
		},
		Pools:  []Pool{{Name: "full", Role: "full", PageBytes: 5120}, {Name: "swa", Role: "swa", PageBytes: 26624}},
		Device: Tier{Bytes: 64 << 20}, Host: Tier{Bytes: 256 << 20},
	}
	hit, prompt, moved := [3]int64{}, int64(0), [4]int64{}
	for i := range 200 {
		prompt += 20000
		for k, share := range []int{9000, 5000, 2000} {
			hit[k] += int64(min(i, 60) * (share + rng.IntN(share)/4) / 60)
		}
		for k := range moved {
			moved[k] += rng.Int64N(8 << 20)
		}
		fill := int64(min(i, 80)) << 20 / 2
		d.Samples = append(d.Samples, Sample{Seconds: float64(i) * 0.25, Requests: int64(i) * 20, PromptTokens: prompt, HitTokens: hit,
			Device:   []Occupancy{{Live: fill, Hole: 1 << 20, Reserved: 100 << 10}, {Live: fill / 3, Hole: 2 << 20, Quarantined: 300 << 10}},
			Host:     []Occupancy{{Live: 3 * fill}, {Live: fill}},
			H2DBytes: moved[0], D2HBytes: moved[1], ReadBytes: moved[2] / 4, WriteBytes: moved[3] / 2,
			SubmitP50: 8 + rng.Float64(), SubmitP99: 40 + 20*rng.Float64(), LoadP50: 300 + 50*rng.Float64(), LoadP99: 4000 + 1000*rng.Float64()})
	}
	d.Map = Map{Bytes: d.Device.Bytes, Rows: 400, Sampled: true}
	last := make([]int, 400)
	for i := range 160 {
		col := Column{Seconds: float64(i) * 0.31, Cells: make([]Cell, 400)}
		for r := range col.Cells {
			if rng.IntN(12) == 0 {
				last[r] = i
			}
			age := uint8(min(255, 12*(i-last[r])))
			switch low, high := min(150, 20+i), max(200, 400-2*i); {
			case r < 2:
				col.Cells[r] = Cell{State: Sink}
			case r < low:
				col.Cells[r] = Cell{State: Live, Pool: 1, Age: age, Pinned: rng.IntN(30) == 0}
			case r >= high:
				col.Cells[r] = Cell{State: Live, Pool: 0, Age: age, Pinned: rng.IntN(30) == 0}
			}
			if s := rng.IntN(100); col.Cells[r].State == Live && s < 8 {
				col.Cells[r].State = []State{Hole, Hole, Hole, Hole, Hole, Reserved, Reserved, Quarantined}[s]
			}
		}
		d.Map.Columns = append(d.Map.Columns, col)
	}
	return d
}

func TestPageIsSelfContained(t *testing.T) {
	var b bytes.Buffer
	if err := Write(&b, example()); err != nil {
		t.Fatal(err)
	}
	html := b.String()
	if m := regexp.MustCompile(`(?i)(src|href)\s*=|@import|url\(\s*["']?http|fetch\(|XMLHttpRequest|import\(`).FindString(html); m != "" {
		t.Errorf("the page may fetch something: %q", m)
	}
	if strings.Contains(strings.ReplaceAll(html, "http://www.w3.org/2000/svg", ""), "http") {
		t.Error("the page names an address")
	}
	if n := strings.Count(html, "</script"); n != 1 {
		t.Errorf("%d script ends: data can break out of the page", n)
	}
	for _, want := range []string{"hicache replay", "Partial: interrupted", "time since the start, s", `"name":"swa"`, "prefers-color-scheme"} {
		if !strings.Contains(html, want) {
			t.Errorf("the page lacks %q", want)
		}
	}
	if path := os.Getenv("HICACHE_REPORT_EXAMPLE"); path != "" { // to look at it
		if err := WriteFile(path, example()); err != nil {
			t.Fatal(err)
		}
	}
}

func TestWriteFileLeavesNothingHalf(t *testing.T) {
	folder := t.TempDir()
	path := filepath.Join(folder, "r.html")
	bad := example()
	bad.Samples[3].Device = nil
	if err := WriteFile(path, bad); err == nil || !strings.Contains(err.Error(), "occupancies") {
		t.Errorf("a wrong sample gave %v", err)
	}
	bad = example()
	bad.Map.Columns[0].Cells = nil
	if err := WriteFile(path, bad); err == nil {
		t.Error("a wrong column was accepted")
	}
	if left, _ := os.ReadDir(folder); len(left) != 0 {
		t.Errorf("%d files were left behind", len(left))
	}
	if err := WriteFile(path, &Data{Title: "empty"}); err != nil {
		t.Errorf("an empty run: %v", err)
	}
	if err := WriteFile(filepath.Join(folder, "none", "r.html"), example()); err == nil {
		t.Error("a missing folder was accepted")
	}
}

// TestWriteFileReplacesPlainFilesOnly: a link stays one, and a pipe or a device is written to.
func TestWriteFileReplacesPlainFilesOnly(t *testing.T) {
	folder := t.TempDir()
	plain, link, pipe := filepath.Join(folder, "r.html"), filepath.Join(folder, "link"), filepath.Join(folder, "pipe")
	if err := os.WriteFile(plain, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("r.html", link); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	read := make(chan []byte, 1)
	r, err := os.OpenFile(pipe, os.O_RDWR, 0) // both ends, so that opening it waits for nobody
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		var got []byte
		for buf := make([]byte, 1<<16); !bytes.Contains(got, []byte("</html>")); {
			n, err := r.Read(buf)
			if err != nil {
				break
			}
			got = append(got, buf[:n]...)
		}
		read <- got
	}()
	for _, path := range []string{link, pipe} {
		before, err := os.Lstat(path)
		if err != nil {
			t.Fatal(err)
		}
		if err := WriteFile(path, example()); err != nil {
			t.Fatal(err)
		}
		if after, err := os.Lstat(path); err != nil || after.Mode() != before.Mode() {
			t.Fatalf("%s was %v and is %v (%v)", path, before.Mode(), after.Mode(), err)
		}
	}
	want, err := os.ReadFile(plain)
	if err != nil || len(want) == 0 {
		t.Fatalf("what the link names has %d bytes, %v", len(want), err)
	}
	got := <-read
	r.Close()
	if !bytes.Equal(bytes.TrimSpace(got), bytes.TrimSpace(want)) {
		t.Errorf("the pipe got %d bytes, the file %d", len(got), len(want))
	}
}
