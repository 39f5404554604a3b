package ffi

import "unsafe"

// PoolOptions describe a pool: pages of one size with one role.
type PoolOptions struct {
	Role             Role
	Direction        Direction
	PageTokens       uint32   // Tokens in a page; 1 for a STATE pool. Equal in all pools of an id group.
	WindowTokens     uint32   // SWA only, > 0.
	LayerIDs         []uint32 // Global layer ids, strictly ascending; none in two pools of one group.
	EnvelopeLayout   EnvelopeLayout
	Zeroing          Zeroing
	Flags            PoolFlags
	KRowBytes        uint64 // One layer's K row (or latent row, or recurrent state) of a token; a multiple of 16, > 0.
	VRowBytes        uint64 // One layer's V row (or convolution state); a multiple of 16; 0 for a latent row.
	PageBytes        uint64 // 0: what the rows need; else at least that, a multiple of 16.
	VirtualPageCount uint32 // 0: as many as can ever be in use; must be 0 for SWA.
	HostLayout       HostLayout
	HostPageCount    uint32 // Pages of a host region of its own; 0: a share of HostBytes. Must be 0 with HostLayoutEnvelope.
	HeadCount        uint32 // Heads of a row, for HostLayoutPageHead.
}

// Options open an engine. Zero values are the library's defaults (see hicache_options_t).
type Options struct {
	Library string // Path of libhicache.so; "": see Load. Not used by Library.Open.

	Backend          Backend
	Device           int32 // CUDA ordinal.
	DeviceBytes      uint64
	DeviceBytesMax   uint64  // Range kept for Resize; 0 = DeviceBytes.
	DeviceBuffer     uintptr // Adopt this buffer (never memory of Go's heap); 0: the library owns one.
	HostBytes        uint64  // 0: no host tier.
	HostBytesMax     uint64  // 0 = HostBytes.
	Pools            []PoolOptions
	Compaction       Compaction
	Placement        Placement
	RequestTokensMax uint32
	CopyThreadCount  uint32
	TicketMax        uint32
	ReservationMax   uint32
	LeaseMax         uint32
	StepMax          uint32
	HeldPagesMax     uint32
	Sabotage         Sabotage
	CopyMethod       CopyMethod // CUDA: how copies cross the bus; 0: by size and direction.
	Fault            FaultOptions
	TransferPagesMax uint32
	HostNUMANodes    uint64 // Bit n: the host arena's memory comes from node n; 0: as the kernel likes.
	CopyCalibration  Calibration

	// CUDA: the slowdown of compute accepted beside copies of a direction, in per mille, 1 to 10000; 0: 200.
	H2DSlowdownMaxPermille, D2HSlowdownMaxPermille uint32
}

// abi is the options as the library takes them. What it points to is on the heap and reachable from it.
func (o *Options) abi() *abiOptions {
	pools := make([]abiPoolOptions, len(o.Pools))
	for i := range o.Pools {
		p := &o.Pools[i]
		pools[i] = abiPoolOptions{
			role: p.Role, direction: p.Direction, pageTokens: p.PageTokens, windowTokens: p.WindowTokens,
			layerCount: count(len(p.LayerIDs)), layerIDs: unsafe.SliceData(p.LayerIDs),
			envelopeLayout: p.EnvelopeLayout, zeroing: p.Zeroing, flags: p.Flags,
			kRowBytes: p.KRowBytes, vRowBytes: p.VRowBytes, pageBytes: p.PageBytes, virtualPageCount: p.VirtualPageCount,
			hostLayout: p.HostLayout, hostPageCount: p.HostPageCount, headCount: p.HeadCount,
		}
	}
	return &abiOptions{
		structSize: uint32(unsafe.Sizeof(abiOptions{})), abiVersion: ABIMajor<<16 | ABIMinor,
		backend: o.Backend, device: o.Device,
		deviceBytes: o.DeviceBytes, deviceBytesMax: o.DeviceBytesMax, deviceBuffer: o.DeviceBuffer,
		hostBytes: o.HostBytes, hostBytesMax: o.HostBytesMax,
		pools: unsafe.SliceData(pools), poolCount: count(len(pools)), poolStrideBytes: uint32(unsafe.Sizeof(abiPoolOptions{})),
		compaction: o.Compaction, placement: o.Placement, requestTokensMax: o.RequestTokensMax, copyThreadCount: o.CopyThreadCount,
		ticketMax: o.TicketMax, reservationMax: o.ReservationMax, leaseMax: o.LeaseMax, stepMax: o.StepMax,
		heldPagesMax: o.HeldPagesMax, sabotage: o.Sabotage, copyMethod: o.CopyMethod, fault: o.Fault,
		transferPagesMax: o.TransferPagesMax, hostNumaNodes: o.HostNUMANodes,
		copyCalibration: o.CopyCalibration, h2dSlowdownMaxPermille: o.H2DSlowdownMaxPermille, d2hSlowdownMaxPermille: o.D2HSlowdownMaxPermille,
	}
}
