//go:build nvml

package doctor

import (
	"fmt"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/hicache/hicache/gohicache/cmd/hicache/internal/size"
)

// topology names what lies between two GPUs.
var topology = map[nvml.GpuTopologyLevel]string{
	nvml.TOPOLOGY_INTERNAL: "one board", nvml.TOPOLOGY_SINGLE: "one PCIe switch", nvml.TOPOLOGY_MULTIPLE: "several PCIe switches",
	nvml.TOPOLOGY_HOSTBRIDGE: "a host bridge", nvml.TOPOLOGY_NODE: "a NUMA node", nvml.TOPOLOGY_SYSTEM: "the link between sockets",
}

// management is what NVIDIA's management library adds to /proc and /sys: free memory, the PCIe rate that device and slot can do, and how GPUs reach
// each other. The library is opened at run time.
func management() []Finding {
	if r := nvml.Init(); r != nvml.SUCCESS {
		return []Finding{{"NVML", Note, "not usable: " + nvml.ErrorString(r), ""}}
	}
	defer nvml.Shutdown()
	n, r := nvml.DeviceGetCount()
	if r != nvml.SUCCESS {
		return []Finding{{"NVML", Note, "cannot count GPUs: " + nvml.ErrorString(r), ""}}
	}
	var out []Finding
	var devices []nvml.Device
	for i := range n {
		device, r := nvml.DeviceGetHandleByIndex(i)
		if r != nvml.SUCCESS {
			out = append(out, Finding{fmt.Sprintf("NVML GPU %d", i), Note, nvml.ErrorString(r), ""})
			continue
		}
		devices = append(devices, device)
		out = append(out, managed(i, device))
	}
	for i := range devices {
		for j := i + 1; j < len(devices); j++ {
			if level, r := devices[i].GetTopologyCommonAncestor(devices[j]); r == nvml.SUCCESS {
				out = append(out, Finding{fmt.Sprintf("GPUs %d and %d", i, j), Fine, "joined by " + topology[level], ""})
			}
		}
	}
	return out
}

func managed(i int, device nvml.Device) Finding {
	f := Finding{Subject: fmt.Sprintf("NVML GPU %d", i), Level: Fine}
	if memory, r := device.GetMemoryInfo(); r == nvml.SUCCESS {
		f.Found = fmt.Sprintf("%s free of %s", size.Format(int64(memory.Free)), size.Format(int64(memory.Total)))
	} else {
		f.Found = "memory: " + nvml.ErrorString(r)
	}
	now, r1 := device.GetCurrPcieLinkGeneration()
	most, r2 := device.GetMaxPcieLinkGeneration()
	if r1 == nvml.SUCCESS && r2 == nvml.SUCCESS {
		f.Found += fmt.Sprintf(", PCIe generation %d of %d", now, most) // An idle link is slower by design: no finding.
	}
	return f
}
