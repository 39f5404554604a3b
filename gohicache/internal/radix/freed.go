package radix

import "github.com/hicache/hicache/ffi/ids"

// Freed lists pages that the tree no longer names and that the caller must give back, indexed by pool. Device[full] are whole pages: they
// go from every pool of the id group. Device[swa] are tombstones: only that pool's page goes. Device[state] are states.
// The tree only appends; Reset empties it and keeps the memory.
type Freed struct {
	Device [][]ids.VirtualPage
	Host   [][]ids.HostPage
}

// Reset empties f.
func (f *Freed) Reset() {
	for p := range f.Device {
		f.Device[p] = f.Device[p][:0]
	}
	for p := range f.Host {
		f.Host[p] = f.Host[p][:0]
	}
}

// Empty reports whether f lists nothing.
func (f *Freed) Empty() bool {
	for _, l := range f.Device {
		if len(l) > 0 {
			return false
		}
	}
	for _, l := range f.Host {
		if len(l) > 0 {
			return false
		}
	}
	return true
}

// fit gives f room for every pool.
func (f *Freed) fit(pools int) {
	for len(f.Device) < pools {
		f.Device = append(f.Device, nil)
	}
	for len(f.Host) < pools {
		f.Host = append(f.Host, nil)
	}
}

func (f *Freed) device(pool int, v uint32) {
	if v != ids.None {
		f.Device[pool] = append(f.Device[pool], ids.VirtualPage(v))
	}
}

func (f *Freed) host(pool int, h uint32) {
	if h != ids.None {
		f.Host[pool] = append(f.Host[pool], ids.HostPage(h))
	}
}
