package doctor

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// machine makes a machine out of files.
func machine(t *testing.T, files map[string]string) *Machine {
	t.Helper()
	root := t.TempDir()
	for name, text := range files {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return &Machine{Root: root, Library: filepath.Join(root, "none.so")}
}

func find(t *testing.T, m *Machine, subject string) Finding {
	t.Helper()
	for _, f := range m.Examine() {
		if f.Subject == subject {
			return f
		}
	}
	t.Fatalf("nothing about %s", subject)
	return Finding{}
}

func TestWhatItFinds(t *testing.T) {
	m := machine(t, map[string]string{
		"proc/cpuinfo":             "processor\t: 0\nmodel name\t: Some CPU\nflags\t\t: fpu avx2 erms sha_ni\n",
		"proc/meminfo":             "MemTotal:       16777216 kB\nMemAvailable:    8388608 kB\nSwapTotal:       0 kB\nHugePages_Total:       3\n",
		"sys/fs/cgroup/memory.max": "1073741824\n",
		"sys/kernel/mm/transparent_hugepage/enabled":          "always madvise [never]\n",
		"sys/devices/system/node/node0/cpulist":               "0-7\n",
		"sys/devices/system/node/node1/cpulist":               "8-15\n",
		"proc/self/limits":                                    "Limit Soft Hard Units\nMax open files            1024                 4096                 files\nMax locked memory         8388608              8388608              bytes\n",
		"proc/driver/nvidia/version":                          "NVRM version: NVIDIA UNIX 580.1\nGCC version: x\n",
		"proc/driver/nvidia/gpus/0000:1A:00.0/information":    "Model: \t\t NVIDIA H200\nIRQ: 1\n",
		"sys/bus/pci/devices/0000:1a:00.0/current_link_speed": "32.0 GT/s PCIe",
		"sys/bus/pci/devices/0000:1a:00.0/current_link_width": "8",
		"sys/bus/pci/devices/0000:1a:00.0/max_link_width":     "16",
		"sys/bus/pci/devices/0000:1a:00.0/numa_node":          "1",
	})
	for _, c := range []struct {
		subject string
		level   Level
		found   string
		change  string
	}{
		{"processor", Fine, "Some CPU", ""},
		{"memory", Note, "16 GiB, 8 GiB available; this control group may use 1 GiB", "below the control group"},
		{"huge pages", Note, "[never]; 3 reserved", "madvise"},
		{"NUMA", Note, "node0: cpus 0-7; node1: cpus 8-15", "numactl"},
		{"open files", Note, "1024", "ulimit -n"},
		{"locked memory", Note, "8 MiB", "ulimit -l"},
		{"GPU driver", Fine, "NVIDIA UNIX 580.1", ""},
		{"GPU 0000:1A:00.0", Note, "NVIDIA H200, PCIe 32.0 GT/s PCIe ×8, NUMA node 1", "8 of 16 lanes"},
		{"library", Bad, "none.so", "make"},
	} {
		f := find(t, m, c.subject)
		if f.Level != c.level && c.subject != "processor" || !strings.Contains(f.Found, c.found) || !strings.Contains(f.Change, c.change) || (c.change == "" && f.Change != "") && c.subject != "processor" {
			t.Errorf("%s: %+v", c.subject, f)
		}
	}
	if Healthy(m.Examine()) {
		t.Error("a machine without the library is not healthy")
	}
	var out bytes.Buffer
	if err := Write(&out, m.Examine()); err != nil || !strings.Contains(out.String(), "→ ") {
		t.Errorf("%v\n%s", err, out.String())
	}
}

func TestABareMachine(t *testing.T) {
	m := machine(t, nil)
	if f := find(t, m, "GPU"); f.Level != Note || !strings.Contains(f.Found, "cpu and null") {
		t.Errorf("%+v", f)
	}
	if f := find(t, m, "limits"); f.Found != "unknown" {
		t.Errorf("%+v", f)
	}
}

// TestManagement: with the tag nvml the machine's own management library is asked, and its absence is a finding and no failure.
func TestManagement(t *testing.T) {
	for _, f := range management() {
		if f.Subject == "" || f.Found == "" || f.Level == Bad {
			t.Errorf("%+v", f)
		}
	}
}
