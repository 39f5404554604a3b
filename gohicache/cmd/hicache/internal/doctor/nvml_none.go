//go:build !nvml

package doctor

// management needs the tag nvml (cgo and github.com/NVIDIA/go-nvml); without it /proc and /sys are what is looked at.
func management() []Finding { return nil }
