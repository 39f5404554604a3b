// Package report draws one self-contained HTML page of a run: nothing is fetched, and the page can be mailed as it is. It takes plain
// numbers and knows nothing of the cache.
package report

import (
	_ "embed"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"html/template"
	"io"
	"os"
	"path/filepath"
)

// Data is all that a page shows.
type Data struct {
	Title    string
	Subtitle string   // one line: what was run
	Notes    []string // what a reader must know first: partial, degraded
	Totals   []Group
	Pools    []Pool
	Device   Tier
	Host     Tier
	Samples  []Sample
	Map      Map
}

// Group is one table of totals.
type Group struct {
	Title string `json:"title"`
	Rows  []Row  `json:"rows"`
}

// Row is one line of a table.
type Row struct {
	Name  string `json:"name"`
	Value string `json:"value"`
	Note  string `json:"note,omitempty"`
}

// Pool names a pool; its index is what samples and map cells mean by a pool.
type Pool struct {
	Name      string `json:"name"`
	Role      string `json:"role"`
	PageBytes int64  `json:"page_bytes"`
}

// Tier is the size of an arena; 0 bytes when there is none.
type Tier struct {
	Bytes int64 `json:"bytes"`
}

// Sample is one moment. Counters are cumulative since the start; the page takes the differences.
type Sample struct {
	Seconds      float64     `json:"t"`
	Requests     int64       `json:"n"`
	PromptTokens int64       `json:"prompt"`
	HitTokens    [3]int64    `json:"hit"`    // device, host, storage
	Device       []Occupancy `json:"device"` // by pool
	Host         []Occupancy `json:"host"`   // by pool
	H2DBytes     int64       `json:"h2d"`
	D2HBytes     int64       `json:"d2h"`
	ReadBytes    int64       `json:"read"`  // storage
	WriteBytes   int64       `json:"write"` // storage
	// Latencies since the sample before, in microseconds; 0 where nothing was measured.
	SubmitP50 float64 `json:"submit50"` // the call that queues a load-back, on the caller
	SubmitP99 float64 `json:"submit99"`
	LoadP50   float64 `json:"load50"` // from that call until the pages are readable
	LoadP99   float64 `json:"load99"`
	Moves     int64   `json:"moves"` // pages that compaction moved, cumulative
}

// Occupancy is what a pool holds of an arena, in bytes.
type Occupancy struct {
	Live        int64 `json:"live"`
	Hole        int64 `json:"hole"`
	Reserved    int64 `json:"reserved"`
	Quarantined int64 `json:"quarantined"`
}

// Map is the arena through time: columns of Rows cells each, from byte 0 up.
type Map struct {
	Bytes   int64
	Rows    int
	Sampled bool // a cell stands for several pages, of which it shows one
	Columns []Column
}

// Column is the arena at one moment.
type Column struct {
	Seconds float64
	Cells   []Cell
}

// State of a page, in the values of the C ABI's hicache_map.
type State uint8

const (
	Gap State = iota
	Sink
	Live
	Hole
	Reserved
	Quarantined
)

// Cell is one page of the map.
type Cell struct {
	State  State
	Pool   uint8 // 0 to 15
	Pinned bool
	Age    uint8 // 0: used just now; each step of AgeSteps doubles it
}

// AgeSteps is how many steps a doubling of the age takes.
const AgeSteps = 16

//go:embed page.html
var pageHTML string

//go:embed page.css
var pageCSS string

//go:embed page.js
var pageJS string

var page = template.Must(template.New("page").Parse(pageHTML))

// WriteFile writes the page to path, whole or not at all. A link is followed; what is no plain file (a pipe, /dev/stdout) is written to, never
// replaced.
func WriteFile(path string, d *Data) (err error) {
	if target, err := filepath.EvalSymlinks(path); err == nil {
		path = target
	}
	if info, err := os.Stat(path); err == nil && !info.Mode().IsRegular() {
		return writeTo(path, d)
	}
	f, err := os.CreateTemp(filepath.Dir(path), ".report-*")
	if err != nil {
		return fmt.Errorf("report: %w", err)
	}
	defer func() {
		if err != nil {
			os.Remove(f.Name())
		}
	}()
	if err = Write(f, d); err != nil {
		f.Close()
		return err
	}
	if err = f.Chmod(0o644); err != nil {
		f.Close()
		return fmt.Errorf("report: %w", err)
	}
	if err = f.Close(); err != nil {
		return fmt.Errorf("report: %w", err)
	}
	if err = os.Rename(f.Name(), path); err != nil {
		return fmt.Errorf("report: %w", err)
	}
	return nil
}

// writeTo writes the page to what is there already.
func writeTo(path string, d *Data) error {
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return fmt.Errorf("report: %w", err)
	}
	if err := Write(f, d); err != nil {
		f.Close()
		return err
	}
	if err := f.Close(); err != nil {
		return fmt.Errorf("report: %w", err)
	}
	return nil
}

// Write writes the page. Its size is bounded by the samples and cells given: about 3 bytes a cell.
func Write(w io.Writer, d *Data) error {
	if err := check(d); err != nil {
		return err
	}
	type column struct {
		Seconds float64 `json:"t"`
		Cells   string  `json:"c"` // base64: state | pool << 3 | pinned << 7, then the age, a cell
	}
	columns := make([]column, len(d.Map.Columns))
	for i, c := range d.Map.Columns {
		raw := make([]byte, 0, 2*len(c.Cells))
		for _, cell := range c.Cells {
			b := byte(cell.State) | cell.Pool<<3
			if cell.Pinned {
				b |= 0x80
			}
			raw = append(raw, b, cell.Age)
		}
		columns[i] = column{c.Seconds, base64.StdEncoding.EncodeToString(raw)}
	}
	payload, err := json.Marshal(map[string]any{
		"pools": d.Pools, "device": d.Device, "host": d.Host, "samples": d.Samples, "totals": d.Totals,
		"map": map[string]any{"bytes": d.Map.Bytes, "rows": d.Map.Rows, "sampled": d.Map.Sampled, "columns": columns, "age_steps": AgeSteps},
	})
	if err != nil {
		return fmt.Errorf("report: %w", err)
	}
	// json.Marshal escapes <, > and &, so the data cannot end its script element.
	err = page.Execute(w, map[string]any{"Title": d.Title, "Subtitle": d.Subtitle, "Notes": d.Notes,
		"CSS": template.CSS(pageCSS), "JS": template.JS(pageJS), "Data": template.JS(payload)})
	if err != nil {
		return fmt.Errorf("report: %w", err)
	}
	return nil
}

func check(d *Data) error {
	if len(d.Pools) > 16 {
		return fmt.Errorf("report: %d pools, at most 16", len(d.Pools))
	}
	for _, s := range d.Samples {
		if len(s.Device) != len(d.Pools) || len(s.Host) != len(d.Pools) {
			return fmt.Errorf("report: the sample at %.3f s has %d and %d occupancies for %d pools", s.Seconds, len(s.Device), len(s.Host), len(d.Pools))
		}
	}
	for _, c := range d.Map.Columns {
		if len(c.Cells) != d.Map.Rows {
			return fmt.Errorf("report: the map at %.3f s has %d of %d cells", c.Seconds, len(c.Cells), d.Map.Rows)
		}
	}
	return nil
}
