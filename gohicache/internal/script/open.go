package script

import (
	"errors"
	"fmt"

	"github.com/hicache/hicache/ffi"
)

// poolState is what the interpreter remembers of a pool: its name, and where it is on both tiers.
type poolState struct {
	name       string
	role       ffi.Role
	pageTokens uint32
	owner      uint32 // Pool that hands out its virtual ids.
	device     ffi.PoolInfo
	host       ffi.PoolInfo // Zero without a host tier.
	static     bool
	layers     []uint32
}

var (
	backends    = map[string]uint32{"cpu": uint32(ffi.BackendCPU), "null": uint32(ffi.BackendNull)}
	compactions = map[string]uint32{"lazy": uint32(ffi.CompactionLazy), "eager": uint32(ffi.CompactionEager), "off": uint32(ffi.CompactionOff)}
	placements  = map[string]uint32{"best": uint32(ffi.PlacementBest), "reference": uint32(ffi.PlacementReference)}
	roles       = map[string]uint32{"full": uint32(ffi.RoleFull), "swa": uint32(ffi.RoleSWA), "state": uint32(ffi.RoleState)}
	directions  = map[string]uint32{"auto": uint32(ffi.DirectionAuto), "up": uint32(ffi.DirectionUp), "float": uint32(ffi.DirectionFloat), "down": uint32(ffi.DirectionDown)}
	layouts     = map[string]uint32{"layer-major": uint32(ffi.EnvelopeLayoutLayerMajor), "token-major": uint32(ffi.EnvelopeLayoutTokenMajor)}
	hostLayouts = map[string]uint32{"envelope": uint32(ffi.HostLayoutEnvelope), "layer_first": uint32(ffi.HostLayoutLayerFirst), "page_first": uint32(ffi.HostLayoutPageFirst),
		"page_first_direct": uint32(ffi.HostLayoutPageFirstDirect), "page_head": uint32(ffi.HostLayoutPageHead)}
	zeroings = map[string]uint32{"default": uint32(ffi.ZeroingDefault), "always": uint32(ffi.ZeroingAlways), "tail": uint32(ffi.ZeroingTail), "never": uint32(ffi.ZeroingNever)}
)

var directionNames = map[ffi.Direction]string{ffi.DirectionUp: "up", ffi.DirectionFloat: "float", ffi.DirectionDown: "down"}

// openEngine opens an arena: options on the command line, one pool an input line. The fault backend wraps the chosen one, so copies run only when
// the script says so and a script repeats exactly.
func (in *Interpreter) openEngine(c *call) error {
	if err := in.closeEngine(); err != nil {
		return err
	}
	pageTokens := c.uint32("page-tokens", 16)
	o := ffi.Options{
		Library:          in.Library,
		DeviceBytes:      c.uint("device", 0),
		DeviceBytesMax:   c.uint("device-max", 0),
		HostBytes:        c.uint("host", 0),
		Backend:          ffi.Backend(c.choice("backend", "cpu", backends)),
		Compaction:       ffi.Compaction(c.choice("compaction", "lazy", compactions)),
		Placement:        ffi.Placement(c.choice("placement", "best", placements)),
		RequestTokensMax: c.uint32("request-tokens", 0),
		TicketMax:        c.uint32("tickets", 0),
		ReservationMax:   c.uint32("reservations", 0),
		LeaseMax:         c.uint32("leases", 0),
		StepMax:          c.uint32("steps", 0),
		Sabotage:         ffi.Sabotage(c.uint32("sabotage", 0)),
		Fault: ffi.FaultOptions{Enabled: 1, Hold: 1, Seed: c.uint("seed", 1), FailTransferN: c.uint("fail-transfer", 0),
			FailPPM: c.uint32("fail-ppm", 0), DelayMaxNs: c.uint("delay-ns", 0)},
	}
	if err := c.done(); err != nil {
		return err
	}
	pools, err := in.readPools(c.block, pageTokens, &o)
	if err != nil {
		return err
	}
	engine, err := ffi.Open(&o)
	if err != nil {
		in.pools = pools // For the pool's name in the error.
		return err
	}
	in.engine, in.pools = engine, pools
	in.names, in.stamps, in.tickets, in.holding, in.holds = map[string]*binding{}, map[uint64]string{}, map[uint64]string{}, nil, true
	return in.describePools(c, o.HostBytes > 0)
}

// readPools reads "name role=... k=... v=..." lines.
func (in *Interpreter) readPools(b *Block, pageTokens uint32, o *ffi.Options) ([]poolState, error) {
	var pools []poolState
	nextLayer := uint32(0)
	for i, line := range b.Input {
		name, args, err := parseCommand(line)
		if err != nil {
			return nil, fmt.Errorf("line %d: %w", b.InputLine+i, err)
		}
		p := newCall(&Block{Command: name, Args: args})
		role := ffi.Role(p.choice("role", "full", roles))
		tokens := p.uint32("page-tokens", pageTokens)
		if role == ffi.RoleState {
			tokens = 1
		}
		options := ffi.PoolOptions{
			Role: role, Direction: ffi.Direction(p.choice("direction", "auto", directions)), PageTokens: tokens,
			WindowTokens: p.uint32("window", 0), EnvelopeLayout: ffi.EnvelopeLayout(p.choice("layout", "layer-major", layouts)),
			Zeroing: ffi.Zeroing(p.choice("zeroing", "default", zeroings)), KRowBytes: p.uint("k", 16), VRowBytes: p.uint("v", 0),
			PageBytes: p.uint("page-bytes", 0), VirtualPageCount: p.uint32("virtual-pages", 0),
			HostLayout: ffi.HostLayout(p.choice("host-layout", "envelope", hostLayouts)), HostPageCount: p.uint32("host-pages", 0), HeadCount: p.uint32("heads", 0),
		}
		if options.LayerIDs, err = parseNumbers(p.list("layer-ids")); err != nil {
			p.fail("layer-ids: %v", err)
		}
		for n := p.uint32("layers", 1); options.LayerIDs == nil || uint32(len(options.LayerIDs)) < n; nextLayer++ {
			options.LayerIDs = append(options.LayerIDs, nextLayer)
		}
		static := p.flag("static")
		if static {
			options.Flags = ffi.PoolFlagsStatic
		}
		if err := p.done(); err != nil {
			return nil, fmt.Errorf("line %d: %w", b.InputLine+i, err)
		}
		o.Pools = append(o.Pools, options)
		pools = append(pools, poolState{name: name, role: role, pageTokens: tokens, static: static, layers: options.LayerIDs})
	}
	if len(pools) == 0 {
		return nil, errors.New("open needs one indented line a pool")
	}
	return pools, nil
}

// describePools asks the engine for the resolved geometry and prints it.
func (in *Interpreter) describePools(c *call, host bool) error {
	for i := range in.pools {
		p := &in.pools[i]
		var err error
		if p.device, err = in.engine.PoolInfo(ffi.TierDevice, uint32(i)); err != nil {
			return err
		}
		if host {
			if p.host, err = in.engine.PoolInfo(ffi.TierHost, uint32(i)); err != nil {
				return err
			}
		}
		p.owner = p.device.IDOwner
	}
	for i := range in.pools {
		p := &in.pools[i]
		where, suffix := directionNames[p.device.Direction], ""
		if p.static {
			where = "static"
		}
		if int(p.owner) != i {
			suffix = ", ids of " + in.pools[p.owner].name
		}
		c.out.line("%s: %s, %d B a page, pages %d..%d%s", p.name, where, p.device.PageBytes, p.device.FirstPage, p.device.PageCount-1, suffix)
	}
	return nil
}

// pool finds a pool by its name.
func (in *Interpreter) pool(name string) (uint32, error) {
	if in.engine == nil {
		return 0, errors.New("no engine is open")
	}
	for i := range in.pools {
		if in.pools[i].name == name {
			return uint32(i), nil
		}
	}
	return 0, fmt.Errorf("no pool %q", name)
}

// poolList resolves pool names; none means all pools.
func (in *Interpreter) poolList(names []string) ([]uint32, error) {
	if in.engine == nil {
		return nil, errors.New("no engine is open")
	}
	var pools []uint32
	for _, name := range names {
		pool, err := in.pool(name)
		if err != nil {
			return nil, err
		}
		pools = append(pools, pool)
	}
	if len(names) == 0 {
		for i := range in.pools {
			pools = append(pools, uint32(i))
		}
	}
	return pools, nil
}

// closeCommand closes the engine as it is: BUSY if the script still holds something.
func (in *Interpreter) closeCommand(c *call) error {
	if err := c.done(); err != nil {
		return err
	}
	if in.engine == nil {
		return errors.New("no engine is open")
	}
	if err := in.engine.Close(); err != nil {
		return err
	}
	in.engine = nil
	return nil
}

// closeEngine gives back what the script holds, runs what is queued, and closes.
func (in *Interpreter) closeEngine() error {
	if in.engine == nil {
		return nil
	}
	for _, b := range in.holding {
		switch b.kind { // One that is over already answers STALE_ID: nothing to do.
		case reservation:
			_ = in.engine.Cancel(ffi.Reservation(b.id))
		case lease:
			_ = in.engine.LeaseRelease(ffi.Lease(b.id))
		case step:
			_ = in.engine.StepClose(ffi.Step(b.id))
		}
	}
	err := in.engine.Close()
	in.engine = nil
	return err
}
