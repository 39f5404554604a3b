package proptest

import (
	"encoding/binary"

	"pgregory.net/rapid"

	"github.com/hicache/hicache/ffi"
	"github.com/hicache/hicache/ffi/ids"
)

// A geometry is a set of pools small enough that neighbours meet all the time.
type geometry struct {
	name  string
	pools []ffi.PoolOptions
	pages int // About as many pages of each pool as fit.
}

func pool(role ffi.Role, layers ...uint32) ffi.PoolOptions {
	p := ffi.PoolOptions{Role: role, LayerIDs: layers, KRowBytes: 16, VRowBytes: 16}
	switch role {
	case ffi.RoleSWA:
		p.WindowTokens = 32
	case ffi.RoleState:
		p.PageTokens, p.KRowBytes, p.VRowBytes = 1, 96, 48
	}
	return p
}

// geometries are arenas of 1, 2, 3, 4 and 6 pools; with three and more there is a floating middle.
var geometries = []geometry{
	{"1 pool", []ffi.PoolOptions{pool(ffi.RoleFull, 0, 1)}, 12},
	{"2 pools", []ffi.PoolOptions{pool(ffi.RoleFull, 0, 3), pool(ffi.RoleSWA, 1)}, 9},
	{"3 pools", []ffi.PoolOptions{pool(ffi.RoleFull, 0), pool(ffi.RoleSWA, 1, 2), pool(ffi.RoleState, 3)}, 7},
	{"4 pools", []ffi.PoolOptions{pool(ffi.RoleFull, 0), pool(ffi.RoleSWA, 1, 2), pool(ffi.RoleSWA, 4), pool(ffi.RoleState, 3)}, 6},
	{"6 pools", []ffi.PoolOptions{pool(ffi.RoleFull, 0), pool(ffi.RoleSWA, 1), pool(ffi.RoleSWA, 2, 4), pool(ffi.RoleState, 3), pool(ffi.RoleState, 5),
		pool(ffi.RoleState, 6, 7)}, 5},
}

// options draws an engine of one geometry. Copies run only inside calls, so a run repeats exactly.
func (g *geometry) options(t *rapid.T, backend ffi.Backend, pageTokens uint32) *ffi.Options {
	o := g.fixed(backend, pageTokens)
	o.Compaction = rapid.SampledFrom([]ffi.Compaction{ffi.CompactionLazy, ffi.CompactionEager, ffi.CompactionOff}).Draw(t, "compaction")
	if len(g.pools) <= 2 {
		o.Placement = rapid.SampledFrom([]ffi.Placement{ffi.PlacementBest, ffi.PlacementReference}).Draw(t, "placement")
	}
	o.DeviceBytes += 16 * rapid.Uint64Range(0, 40).Draw(t, "odd bytes")
	o.DeviceBytesMax = o.DeviceBytes + o.DeviceBytes/2
	o.Fault.Seed = rapid.Uint64().Draw(t, "seed")
	o.Fault.DelayMaxNs = rapid.SampledFrom([]uint64{0, 1000}).Draw(t, "delay")
	o.Fault.FailPPM = rapid.SampledFrom([]uint32{0, 0, 200_000}).Draw(t, "failures")
	return o
}

// fixed is the geometry with nothing drawn.
func (g *geometry) fixed(backend ffi.Backend, pageTokens uint32) *ffi.Options {
	o := &ffi.Options{Backend: backend, Sabotage: sabotage(), Fault: ffi.FaultOptions{Enabled: 1, Hold: 1, Seed: 1}}
	for _, p := range g.pools {
		if p.Role != ffi.RoleState {
			p.PageTokens = pageTokens
		}
		o.Pools = append(o.Pools, p)
		bytes := uint64(len(p.LayerIDs)) * (p.KRowBytes + p.VRowBytes) * uint64(p.PageTokens)
		o.DeviceBytes += uint64(g.pages) * bytes
		o.HostBytes += uint64(g.pages) * bytes / 2
	}
	return o
}

// chainOf orders pools from the low end to the high end, as the engine resolved them.
func chainOf(infos []ffi.PoolInfo) []int {
	var chain []int
	for _, direction := range []ffi.Direction{ffi.DirectionUp, ffi.DirectionFloat, ffi.DirectionDown} {
		for i := range infos {
			if infos[i].Direction == direction {
				chain = append(chain, i)
			}
		}
	}
	return chain
}

// A content is 64 bits that a page holds: spread over all of its bytes, each word different, so that a shifted, stale or half copied page
// does not read as any content. 0 is the zeroed page.
func writeContent(page []byte, content uint64) {
	for i := 0; i+8 <= len(page); i += 8 {
		word := uint64(0)
		if content != 0 {
			word = content ^ uint64(i)*0x9e3779b97f4a7c15
		}
		binary.LittleEndian.PutUint64(page[i:], word)
	}
}

// readContent returns what a page holds, and whether all of it does.
func readContent(page []byte) (content uint64, whole bool) {
	content = binary.LittleEndian.Uint64(page)
	for i := 0; i+8 <= len(page); i += 8 {
		word := uint64(0)
		if content != 0 {
			word = content ^ uint64(i)*0x9e3779b97f4a7c15
		}
		if binary.LittleEndian.Uint64(page[i:]) != word {
			return content, false
		}
	}
	return content, true
}

// placeOf inverts the published linear map of page-granular kernel ids.
func placeOf(info *ffi.PoolInfo, id ids.KernelID) uint32 {
	return uint32((uint64(id) - info.KernelPageOffset) / info.KernelPageScale)
}
