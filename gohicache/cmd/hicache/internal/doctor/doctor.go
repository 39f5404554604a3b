// Package doctor looks at the machine as a cache would use it and says what to change.
package doctor

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"sort"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/hicache/hicache/ffi"
	"github.com/hicache/hicache/gohicache/cmd/hicache/internal/size"
)

// Level of a finding.
type Level string

const (
	Fine Level = "ok"
	Note Level = "note" // works, could be better
	Bad  Level = "BAD"  // the cache cannot run
)

// Finding is one line of the report.
type Finding struct {
	Subject string `json:"subject"`
	Level   Level  `json:"level"`
	Found   string `json:"found"`
	Change  string `json:"change,omitempty"` // what to do about it
}

// Machine is where the doctor looks; the zero Root is the machine itself.
type Machine struct {
	Root    string // for tests: /proc and /sys lie under it
	Library string // path of libhicache; "" searches
}

func (m *Machine) read(path string) (string, bool) {
	b, err := os.ReadFile(filepath.Join(m.Root, path))
	return strings.TrimSpace(string(b)), err == nil
}

func (m *Machine) glob(pattern string) []string {
	paths, _ := filepath.Glob(filepath.Join(m.Root, pattern))
	sort.Strings(paths)
	return paths
}

// Examine makes all findings, in a fixed order.
func (m *Machine) Examine() []Finding {
	var f []Finding
	f = append(f, m.platform(), m.library())
	f = append(f, m.cpu(), m.memory(), m.hugePages(), m.numa())
	f = append(f, m.limits()...)
	f = append(f, m.gpu()...)
	if m.Root == "" {
		f = append(f, m.copies()...)
		f = append(f, management()...)
	}
	return f
}

func (m *Machine) platform() Finding {
	f := Finding{Subject: "platform", Level: Fine, Found: runtime.GOOS + "/" + runtime.GOARCH + ", " + runtime.Version()}
	if v, ok := m.read("/proc/sys/kernel/osrelease"); ok {
		f.Found += ", kernel " + v
	}
	if runtime.GOOS != "linux" || (runtime.GOARCH != "amd64" && runtime.GOARCH != "arm64") {
		f.Level, f.Change = Bad, "run on linux/amd64 or linux/arm64"
	}
	return f
}

func (m *Machine) library() Finding {
	lib, err := ffi.Load(m.Library)
	if err != nil {
		return Finding{"library", Bad, err.Error(), "build it with make, or set HICACHE_LIBRARY to libhicache.so"}
	}
	major, minor := lib.ABIVersion()
	return Finding{"library", Fine, fmt.Sprintf("%s: %s; ABI %d.%d, this program was built for %d.%d; calls by %s", lib.Path(), lib.BuildInfo(), major, minor,
		ffi.ABIMajor, ffi.ABIMinor, ffi.CallMode), ""}
}

func (m *Machine) cpu() Finding {
	text, _ := m.read("/proc/cpuinfo")
	model := "unknown model"
	var features []string
	for _, line := range strings.Split(text, "\n") {
		key, value, _ := strings.Cut(line, ":")
		switch key, value = strings.TrimSpace(key), strings.TrimSpace(value); key {
		case "model name", "CPU part":
			model = value
		case "flags", "Features":
			for _, want := range []string{"avx2", "avx512f", "sha_ni", "erms", "asimd", "sha2", "sve"} {
				if strings.Contains(" "+value+" ", " "+want+" ") {
					features = append(features, want)
				}
			}
		}
		if len(features) > 0 && model != "unknown model" {
			break
		}
	}
	f := Finding{"processor", Fine, fmt.Sprintf("%s, %d usable, %s", model, runtime.NumCPU(), strings.Join(features, " ")), ""}
	if runtime.NumCPU() < 2 {
		f.Level, f.Change = Note, "copies and compute share one core; give the process two or more"
	}
	return f
}

// field reads "Name:  123 kB" from a /proc file.
func field(text, name string) (int64, bool) {
	for _, line := range strings.Split(text, "\n") {
		if rest, ok := strings.CutPrefix(line, name+":"); ok {
			parts := strings.Fields(rest)
			if len(parts) == 0 {
				return 0, false
			}
			v, err := strconv.ParseInt(parts[0], 10, 64)
			return v, err == nil
		}
	}
	return 0, false
}

func (m *Machine) memory() Finding {
	text, _ := m.read("/proc/meminfo")
	total, _ := field(text, "MemTotal")
	free, ok := field(text, "MemAvailable")
	if !ok {
		return Finding{"memory", Note, "unknown", ""}
	}
	f := Finding{"memory", Fine, fmt.Sprintf("%s, %s available", size.Format(total<<10), size.Format(free<<10)), ""}
	if limit, ok := m.memoryLimit(); ok && limit < total<<10 {
		f.Found += fmt.Sprintf("; this control group may use %s", size.Format(limit))
		f.Change = "device (cpu backend) and host tiers together must stay below the control group's limit"
		f.Level = Note
	}
	if swap, _ := field(text, "SwapTotal"); swap > 0 {
		f.Found += ", swap " + size.Format(swap<<10)
		f.Level, f.Change = Note, "a host tier that is swapped out is slower than none: lower vm.swappiness or size the host tier below the available memory"
	}
	return f
}

func (m *Machine) memoryLimit() (int64, bool) {
	for _, path := range []string{"/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"} {
		if text, ok := m.read(path); ok {
			v, err := strconv.ParseInt(text, 10, 64)
			return v, err == nil && v < 1<<60
		}
	}
	return 0, false
}

func (m *Machine) hugePages() Finding {
	mode, ok := m.read("/sys/kernel/mm/transparent_hugepage/enabled")
	if !ok {
		return Finding{"huge pages", Note, "the kernel has no transparent huge pages", ""}
	}
	f := Finding{"huge pages", Fine, "transparent: " + mode, ""}
	if strings.Contains(mode, "[never]") {
		f.Level, f.Change = Note, "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled: arenas then use 2 MiB pages (fewer TLB misses, faster registration)"
	}
	text, _ := m.read("/proc/meminfo")
	if n, _ := field(text, "HugePages_Total"); n > 0 {
		f.Found += fmt.Sprintf("; %d reserved", n)
	}
	return f
}

func (m *Machine) numa() Finding {
	nodes := m.glob("/sys/devices/system/node/node[0-9]*")
	if len(nodes) == 0 {
		return Finding{"NUMA", Fine, "one node", ""}
	}
	var parts []string
	for _, n := range nodes {
		b, _ := os.ReadFile(filepath.Join(n, "cpulist"))
		parts = append(parts, filepath.Base(n)+": cpus "+strings.TrimSpace(string(b)))
	}
	f := Finding{"NUMA", Fine, strings.Join(parts, "; "), ""}
	if len(nodes) > 1 {
		f.Level, f.Change = Note, "run the process on the node of its device (numactl --cpunodebind=N --membind=N), or copies cross the sockets' link"
	}
	return f
}

func (m *Machine) limits() []Finding {
	text, ok := m.read("/proc/self/limits")
	if !ok {
		return []Finding{{"limits", Note, "unknown", ""}}
	}
	limit := func(name string) string {
		for _, line := range strings.Split(text, "\n") {
			if rest, ok := strings.CutPrefix(line, name); ok {
				if parts := strings.Fields(rest); len(parts) > 0 {
					return parts[0]
				}
			}
		}
		return "unknown"
	}
	locked, files := limit("Max locked memory"), limit("Max open files")
	lockedFinding := Finding{"locked memory", Fine, locked, ""}
	if v, err := strconv.ParseInt(locked, 10, 64); err == nil {
		lockedFinding.Found = size.Format(v)
		lockedFinding.Level, lockedFinding.Change = Note, "ulimit -l unlimited, if memory is to be locked beside a GPU (CUDA's own pinning does not need it)"
	}
	filesFinding := Finding{"open files", Fine, files, ""}
	if v, err := strconv.ParseInt(files, 10, 64); err == nil && v < 4096 {
		filesFinding.Level, filesFinding.Change = Note, "ulimit -n 65536: a file store opens many objects at once"
	}
	out := []Finding{lockedFinding, filesFinding}
	if v, ok := m.read("/proc/sys/vm/max_map_count"); ok {
		out = append(out, Finding{"memory maps", Fine, v, ""})
	}
	return out
}

func (m *Machine) gpu() []Finding {
	version, ok := m.read("/proc/driver/nvidia/version")
	if !ok {
		return []Finding{{"GPU", Note, "no NVIDIA driver: the cpu and null backends run", ""}}
	}
	first, _, _ := strings.Cut(version, "\n")
	out := []Finding{{"GPU driver", Fine, strings.TrimPrefix(first, "NVRM version: "), ""}}
	for _, path := range m.glob("/proc/driver/nvidia/gpus/*/information") {
		b, _ := os.ReadFile(path)
		name, bus := "unknown", filepath.Base(filepath.Dir(path))
		for _, line := range strings.Split(string(b), "\n") {
			if rest, ok := strings.CutPrefix(line, "Model:"); ok {
				name = strings.TrimSpace(rest)
			}
		}
		f := Finding{"GPU " + bus, Fine, name, ""}
		device := "/sys/bus/pci/devices/" + strings.ToLower(bus)
		speed, _ := m.read(device + "/current_link_speed")
		width, _ := m.read(device + "/current_link_width")
		most, _ := m.read(device + "/max_link_width")
		if speed != "" {
			f.Found += fmt.Sprintf(", PCIe %s ×%s", speed, width)
		}
		if most != "" && width != most {
			f.Level, f.Change = Note, fmt.Sprintf("the link has %s of %s lanes: look at the slot and the riser", width, most)
		}
		if node, ok := m.read(device + "/numa_node"); ok && node != "-1" {
			f.Found += ", NUMA node " + node
		}
		out = append(out, f)
	}
	return out
}

// copies opens a small engine on the first CUDA device, with pages of every size that leaves a choice, and says how copies cross its bus.
func (m *Machine) copies() []Finding {
	if _, driver := m.read("/proc/driver/nvidia/version"); !driver && os.Getenv("HICACHE_LIBCUDA") == "" {
		return nil // No device: said above.
	}
	o := ffi.Options{Library: m.Library, Backend: ffi.BackendCUDA, DeviceBytes: 32 << 20, HostBytes: 32 << 20}
	for i, bytes := range []uint64{2 << 10, 16 << 10, 32 << 10, 64 << 10, 128 << 10} {
		p := ffi.PoolOptions{Role: ffi.RoleState, PageTokens: 1, LayerIDs: []uint32{uint32(i)}, KRowBytes: bytes}
		if i == 0 {
			p.Role = ffi.RoleFull
		}
		o.Pools = append(o.Pools, p)
	}
	e, err := ffi.Open(&o)
	if err != nil {
		return []Finding{{"copies", Bad, "no engine opens on the CUDA device: " + err.Error(), "look at the driver and the device's free memory"}}
	}
	defer e.Close()
	s, err := e.Stats()
	if err != nil {
		return []Finding{{"copies", Bad, err.Error(), ""}}
	}
	return []Finding{{"copies to the device", Fine, s.H2DChoice.String(), ""}, {"copies from the device", Fine, s.D2HChoice.String(), ""}}
}

// Healthy says that nothing keeps the cache from running.
func Healthy(findings []Finding) bool {
	for _, f := range findings {
		if f.Level == Bad {
			return false
		}
	}
	return true
}

// Write prints the findings for people.
func Write(out io.Writer, findings []Finding) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	for _, f := range findings {
		fmt.Fprintf(w, "%s\t%s\t%s\n", f.Level, f.Subject, strings.ReplaceAll(f.Found, "\n", "\n\t\t"))
		if f.Change != "" {
			fmt.Fprintf(w, "\t\t→ %s\n", f.Change)
		}
	}
	return w.Flush()
}
