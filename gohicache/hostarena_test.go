package hicache_test

import (
	"context"
	"fmt"
	"testing"

	hicache "github.com/hicache/hicache/gohicache"
	"github.com/hicache/hicache/gohicache/storage"
	"github.com/hicache/hicache/gohicache/storage/file"
)

// scattered is a store that cannot keep a page as one object; it counts what it was asked to keep.
type scattered struct {
	storage.Store
	name string
	puts int
}

func (s *scattered) Name() string { return s.name }

func (s *scattered) Capabilities() storage.Capabilities { return storage.Capabilities{Shared: true} }

func (s *scattered) Put(ctx context.Context, keys []storage.Key, src [][]byte, errs []error) error {
	s.puts += len(keys)
	return s.Store.Put(ctx, keys, src, errs)
}

// headPools are FULL and SWA pools whose rows have two heads, and a window.
func headPools() []hicache.PoolOptions {
	return []hicache.PoolOptions{
		{Role: hicache.Full, Layers: []int{2, 5}, KRowBytes: 64, VRowBytes: 32, Heads: 2},
		{Name: "swa", Role: hicache.SWA, Layers: []int{0, 3}, LayerBytes: 64, WindowTokens: 12, Heads: 2},
	}
}

var hostLayouts = []hicache.HostLayout{hicache.HostLayoutDefault, hicache.HostLayerFirst, hicache.HostPageFirst, hicache.HostPageFirstDirect, hicache.HostPageHead}

// TestHostLayouts sends prefixes down every tier and up again with each order of host pages, every byte checked; another cache, with another order,
// finds what was stored.
func TestHostLayouts(t *testing.T) {
	for _, kind := range []string{"envelopes", "K and V", "heads"} {
		for i, layout := range hostLayouts {
			for _, major := range []hicache.Layout{hicache.LayerMajor, hicache.TokenMajor} {
				t.Run(fmt.Sprintf("%s/%s/%d", kind, layout, major), func(t *testing.T) {
					dir, a := folder(t), prompt(1, 41)
					options := func(layout hicache.HostLayout, host uint64) hicache.Options {
						pools := headPools()
						for i := range pools {
							pools[i].Layout = major
						}
						o := hicache.Options{DeviceBytes: 256 * kib, HostBytes: host, Pools: pools, HostLayout: layout, Storage: file.New(dir)}
						if kind != "envelopes" {
							o.Storage = &scattered{Store: o.Storage, name: "scattered"}
						}
						if kind == "heads" {
							o.HeadGroups = 2
						}
						return o
					}
					o := options(layout, 256*kib)
					s := open(t, o)
					wantHit(t, s.run(a), 0, 0, 0)
					s.flush()
					s.evict(hicache.TierDevice)
					wantHit(t, s.run(a), 0, 40, 0)
					s.flush()
					s.evict(hicache.TierDevice)
					s.evict(hicache.TierHost)
					wantHit(t, s.run(a), 0, 0, 40)
					if counts, ok := o.Storage.(*scattered); ok && counts.puts != 2*10*2 { // two objects a page: K and V, or two groups of heads
						t.Fatalf("%d objects stored for 10 pages of two pools", counts.puts)
					}
					wantHit(t, open(t, options(hostLayouts[(i+2)%len(hostLayouts)], 256*kib)).run(a), 0, 0, 40)
					wantHit(t, open(t, options(layout, 0)).run(a), 0, 0, 40) // through a staging arena
				})
			}
		}
	}
}

// TestSmallRegions: a region that is full gives up pages of its own, whatever its neighbours have.
func TestSmallRegions(t *testing.T) {
	pools := headPools()
	pools[0].HostLayout, pools[0].HostPages = hicache.HostPageFirst, 12
	pools[1].HostLayout, pools[1].HostPages = hicache.HostLayerFirst, 30
	s := open(t, hicache.Options{DeviceBytes: 64 * kib, HostBytes: 256 * kib, Pools: pools})
	for i := range 6 {
		s.run(prompt(i, 41))
		s.flush()
		s.evict(hicache.TierDevice)
	}
	wantHit(t, s.run(prompt(5, 41)), 0, 40, 0)
	for pool, most := range []int{12, 30} {
		if n := s.live(hicache.TierHost, pool); n == 0 || n > most {
			t.Errorf("pool %d: %d pages on the host, its region has %d", pool, n, most)
		}
	}
	if st := s.c.Stats(); st.Evicted.Host == 0 {
		t.Error("nothing had to go")
	}
}

// TestSmallRegionBesideTheArena: what a full region lacks is not taken from the arena that the other pools share.
func TestSmallRegionBesideTheArena(t *testing.T) {
	pools := headPools()
	pools[1].HostLayout, pools[1].HostPages = hicache.HostLayerFirst, 12
	s := open(t, hicache.Options{DeviceBytes: 64 * kib, HostBytes: 256 * kib, Pools: pools})
	for i := range 6 {
		s.run(prompt(i, 41))
		s.flush()
	}
	if full, windows := s.live(hicache.TierHost, 0), s.live(hicache.TierHost, 1); full != 60 || windows == 0 || windows > 12 {
		t.Errorf("%d full and %d window pages on the host, want 60 and at most 12", full, windows)
	}
}

// TestHostArenaChoice is scenario G42: which stores get envelopes. The profile of the source system goes by the store's name, ours by what it can do;
// both host modes choose alike.
func TestHostArenaChoice(t *testing.T) {
	latent := []hicache.PoolOptions{{Role: hicache.Full, Layers: []int{0}, KRowBytes: 64}}
	latentFull := append(latent[:1:1], hicache.PoolOptions{Role: hicache.SWA, Layers: []int{1}, LayerBytes: 64, WindowTokens: 12})
	withState := append(headPools()[:1:1], hicache.PoolOptions{Role: hicache.State, Layers: []int{7}, KRowBytes: 64, VRowBytes: 64})
	three := append(windowPools()[:2:2], hicache.PoolOptions{Role: hicache.State, Layers: []int{7}, KRowBytes: 64, VRowBytes: 64})
	whole := func(name string) storage.Store { return named{file.New(folder(t)), name} }
	for _, c := range []struct {
		name  string
		store storage.Store
		pools []hicache.PoolOptions
		want  map[hicache.HostArena]bool // envelopes?
	}{
		{"no store", nil, headPools(), map[hicache.HostArena]bool{hicache.HostArenaReference: true, hicache.HostArenaAuto: true}},
		{"mori", whole("mori"), headPools(), map[hicache.HostArena]bool{hicache.HostArenaReference: true, hicache.HostArenaAuto: true}},
		{"file", whole("file"), headPools(), map[hicache.HostArena]bool{hicache.HostArenaReference: false, hicache.HostArenaAuto: true}},
		{"shm", whole("shm"), headPools(), map[hicache.HostArena]bool{hicache.HostArenaReference: false, hicache.HostArenaAuto: true}},
		{"mooncake", &scattered{Store: file.New(folder(t)), name: "mooncake"}, headPools(), map[hicache.HostArena]bool{hicache.HostArenaReference: false, hicache.HostArenaAuto: false}},
		{"latent rows", nil, latent, map[hicache.HostArena]bool{hicache.HostArenaReference: false, hicache.HostArenaAuto: true}},
		{"latent rows beside a window", nil, latentFull, map[hicache.HostArena]bool{hicache.HostArenaReference: false, hicache.HostArenaAuto: true}},
		{"a state beside FULL", nil, withState, map[hicache.HostArena]bool{hicache.HostArenaReference: false, hicache.HostArenaAuto: true}},
		{"three pools", nil, three, map[hicache.HostArena]bool{hicache.HostArenaReference: false, hicache.HostArenaAuto: true}},
		{"forced", nil, headPools(), map[hicache.HostArena]bool{hicache.HostArenaEnvelope: true, hicache.HostArenaSeparate: false}},
	} {
		for arena, envelopes := range c.want {
			for _, host := range []uint64{256 * kib, 0} { // a host tier, and staging for storage
				if host == 0 && c.store == nil {
					continue
				}
				s := open(t, hicache.Options{DeviceBytes: 256 * kib, HostBytes: host, Pools: c.pools, HostArena: arena, Storage: c.store})
				for _, p := range s.c.Pools() {
					if got := p.HostLayout == hicache.HostLayoutDefault; got != envelopes {
						t.Errorf("%s, %s, host %d: pool %s has layout %s", c.name, arena, host, p.Name, p.HostLayout)
					}
				}
			}
		}
	}
}

type named struct {
	storage.Store
	name string
}

func (s named) Name() string { return s.name }
