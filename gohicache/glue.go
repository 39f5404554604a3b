package hicache

import (
	"github.com/hicache/hicache/gohicache/internal/lifecycle"
	"github.com/hicache/hicache/gohicache/internal/policy"
	"github.com/hicache/hicache/gohicache/internal/radix"
)

// lifecycleConfig resolves options that have passed Validate and have their defaults.
func lifecycleConfig(o *Options) lifecycle.Config {
	cfg := lifecycle.Config{
		Library: o.Library, Backend: lifecycle.Backend(o.Device.kind), Ordinal: o.Device.ordinal,
		DeviceBytes: o.DeviceBytes, HostBytes: o.HostBytes, HostNUMANodes: o.HostNUMANodes, PageTokens: o.PageTokens, Tokens: radix.TokenForm(o.Tokens), RequestTokensMax: o.RequestTokensMax,
		Compaction: uint32(o.Compaction), Placement: uint32(o.Placement), CopyThreads: o.CopyThreads, Sabotage: o.Sabotage,
		H2DSlowdownMax: o.H2DSlowdownMax, D2HSlowdownMax: o.D2HSlowdownMax, NoCopyCalibration: o.NoCopyCalibration,
		WritePolicy: lifecycle.WritePolicy(o.WritePolicy), WriteThreshold: o.WriteThreshold, WholeLeaf: o.WholeLeaf,
		LoadBackMinTokens: o.LoadBackMinTokens, Events: o.Events,
		Store: o.Storage, KeyFields: lifecycle.KeyFields{Model: o.Model, DType: o.DType, Rank: o.Rank, Ranks: o.Ranks},
		Prefetch: lifecycle.PrefetchPolicy(o.Prefetch), PrefetchMinTokens: o.PrefetchMinTokens, PrefetchTimeout: o.PrefetchTimeout,
		PrefetchTimeoutPerKiTokens: o.PrefetchTimeoutPerKiTokens, StoreQueueMax: o.StoreQueueMax, StorageBatch: o.StorageBatch, HeadGroups: o.HeadGroups,
		Clock: o.Clock, Logger: o.Logger,
	}
	cfg.Policy, _ = policy.ByName(o.Eviction) // Validate has tried it
	if f := o.Faults; f != nil {
		cfg.Fault = &lifecycle.Fault{Seed: f.Seed, FailTransferN: f.FailTransferN, FailPPM: f.FailPPM, Hold: f.Hold, DelayMax: f.DelayMax}
	}
	for i := range o.Pools {
		p := &o.Pools[i]
		k, v := p.rows()
		q := lifecycle.Pool{Name: p.Name, Role: radixRoles[p.Role], KRowBytes: k, VRowBytes: v, PageBytes: p.PageBytes, WindowTokens: p.WindowTokens,
			VirtualPages: p.VirtualPages, Layout: uint32(p.Layout), Zeroing: uint32(p.Zeroing), Direction: uint32(p.Direction), Static: p.Static,
			HostLayout: uint32(o.hostLayout(i)), HostPages: p.HostPages, Heads: p.Heads}
		for _, l := range p.Layers {
			q.Layers = append(q.Layers, uint32(l))
		}
		cfg.Pools = append(cfg.Pools, q)
	}
	if o.HostBytes == 0 && (o.Storage != nil || o.StagingBytes != 0) {
		cfg.Staging, cfg.HostBytes = true, o.StagingBytes
		if cfg.HostBytes == 0 {
			cfg.HostBytes = o.defaultStagingBytes()
		}
	}
	return cfg
}

var radixRoles = map[Role]radix.Role{Full: radix.Full, SWA: radix.SWA, State: radix.State}

// defaultStagingBytes is room for defaultStagingPages pages of every pool.
func (o *Options) defaultStagingBytes() uint64 {
	var sum uint64
	for i := range o.Pools {
		sum += o.pageBytes(i) * defaultStagingPages
	}
	return sum
}

// pageBytes is the size of a pool's page envelope.
func (o *Options) pageBytes(i int) uint64 {
	p := &o.Pools[i]
	k, v := p.rows()
	tokens := uint64(o.PageTokens)
	if p.Role == State {
		tokens = 1
	}
	return max(p.PageBytes, uint64(len(p.Layers))*(k+v)*tokens)
}

// poolInfos describes the pools of an open cache.
func poolInfos(o *Options, core *lifecycle.Core) []PoolInfo {
	out := make([]PoolInfo, len(o.Pools))
	for i := range o.Pools {
		p := &o.Pools[i]
		k, v := p.rows()
		d := core.DeviceInfo(i)
		out[i] = PoolInfo{Name: p.Name, Role: p.Role, Layers: p.Layers, WindowTokens: p.WindowTokens, PageTokens: o.PageTokens,
			PageBytes: d.PageBytes, KRowBytes: k, VRowBytes: v, LayerStrideBytes: d.LayerStrideBytes, TokenStrideBytes: d.TokenStrideBytes,
			VTokenStrideBytes: d.VTokenStrideBytes, VOffsetBytes: d.VOffsetBytes, FirstPage: int(d.FirstPage), PageCount: int(d.PageCount), HostPageCount: int(core.HostInfo(i).PageCount),
			KernelScale: d.KernelPageScale, KernelOffset: d.KernelPageOffset,
			ArenaBase: d.ArenaBase}
		if o.HostBytes > 0 || o.Storage != nil {
			out[i].HostLayout = HostLayout(core.HostInfo(i).HostLayout)
		}
		if p.Role == State {
			out[i].PageTokens = 1
		}
	}
	return out
}
