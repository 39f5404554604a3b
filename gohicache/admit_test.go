package hicache_test

import (
	"errors"
	"testing"

	hicache "github.com/hicache/hicache/gohicache"
	"github.com/hicache/hicache/gohicache/storage/file"
)

func (s *server) live(tier hicache.Tier, pool int) int {
	s.t.Helper()
	st, err := s.c.PoolStats(tier, pool)
	if err != nil {
		s.t.Fatal(err)
	}
	return int(st.Live)
}

// TestLoadsOnlyWhatIsMissing is G49: the parent is resident, its child on the host, the window three pages: exactly the child's two window
// pages are loaded, the parent's rows stay where they are.
func TestLoadsOnlyWhatIsMissing(t *testing.T) {
	pools := []hicache.PoolOptions{
		{Role: hicache.Full, Layers: []int{0}, LayerBytes: 64},
		{Role: hicache.SWA, Layers: []int{1}, LayerBytes: 64, WindowTokens: 12},
	}
	s := open(t, hicache.Options{DeviceBytes: 64 * kib, HostBytes: 64 * kib, Pools: pools})
	a := prompt(1, 24)
	s.run(a[:16])
	s.run(a)
	s.flush()
	if n, err := s.c.Evict(hicache.TierDevice, 0, 2); err != nil || n < 2 {
		t.Fatal(n, err)
	}
	if s.live(hicache.TierDevice, 0) != 4 || s.live(hicache.TierDevice, 1) != 4 {
		t.Fatalf("%d and %d pages are live", s.live(hicache.TierDevice, 0), s.live(hicache.TierDevice, 1))
	}
	m := s.c.MatchWith(a, hicache.MatchOptions{FullHit: true})
	defer m.Release()
	before := s.c.Stats()
	lease, err := s.c.Load(ctx, m, hicache.LoadOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer lease.Release()
	if err := lease.Wait(ctx); err != nil {
		t.Fatal(err)
	}
	wantHit(t, lease.Hit(), 16, 8, 0)
	s.check("prefix", "", a, lease.PoolKernelIDs, 0, 6)
	if s.live(hicache.TierDevice, 0) != 6 || s.live(hicache.TierDevice, 1) != 6 {
		t.Fatalf("%d and %d pages are live after the load", s.live(hicache.TierDevice, 0), s.live(hicache.TierDevice, 1))
	}
	if got := s.c.Stats().LoadBackPages - before.LoadBackPages; got != 4 {
		t.Fatalf("%d pages were copied, want 2 full and 2 window pages", got)
	}
}

// TestRoomByEviction is G50: a load that does not fit evicts, once, just enough; what went is on the host, what stayed is as it was.
func TestRoomByEviction(t *testing.T) {
	s := open(t, hicache.Options{DeviceBytes: 16 * kib, HostBytes: 64 * kib, Pools: fullPools()}) // 31 pages
	a, b, c := prompt(1, 40), prompt(2, 40), prompt(3, 40)
	s.run(a)
	s.run(b)
	s.run(c)
	s.flush()
	if n, err := s.c.Evict(hicache.TierDevice, 0, 10); err != nil || n != 10 { // a goes to the host
		t.Fatal(n, err)
	}
	s.run(prompt(4, 40)) // and its place is taken
	s.flush()
	before := s.c.Stats()
	m := s.c.MatchWith(a, hicache.MatchOptions{FullHit: true})
	defer m.Release()
	lease, err := s.c.Load(ctx, m, hicache.LoadOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer lease.Release()
	for _, err := range lease.Layers() {
		if err != nil {
			t.Fatal(err)
		}
	}
	s.check("loaded", "", a, lease.PoolKernelIDs, 0, 10)
	wantHit(t, lease.Hit(), 0, 40, 0)
	after := s.c.Stats()
	if n := after.Evicted.Device - before.Evicted.Device; n != 9 || after.Dropped != before.Dropped {
		t.Fatalf("%d pages were evicted, want 9: one was free; %d dropped", n, after.Dropped-before.Dropped)
	}
	total := 0
	for _, p := range [][]uint32{b, c} {
		total += s.run(p).Total()
	}
	if total != 72 {
		t.Fatalf("%d tokens of the others are left, want all on device or host", total)
	}
}

// TestRefusedLoadLeavesNothing is G51 and G52: a load that one pool has no room for takes nothing in any pool, the host copy stays, no pin is left.
func TestRefusedLoadLeavesNothing(t *testing.T) {
	s := open(t, hicache.Options{DeviceBytes: 16 * kib, HostBytes: 64 * kib, Pools: windowPools()})
	a := prompt(1, 40)
	s.run(a)
	s.flush()
	s.evict(hicache.TierDevice)
	blocker := s.c.Match(prompt(2, 44))
	held, err := s.c.Load(ctx, blocker, hicache.LoadOptions{})
	if err != nil {
		t.Fatal(err)
	}
	blocker.Release()
	var before []int
	for p := range s.c.Pools() {
		before = append(before, s.live(hicache.TierDevice, p), s.live(hicache.TierHost, p))
	}
	m := s.c.Match(a)
	if _, err := s.c.Load(ctx, m, hicache.LoadOptions{}); !errors.Is(err, hicache.ErrNoCapacity) {
		t.Fatalf("got %v", err)
	}
	m.Release()
	for p := range s.c.Pools() {
		if d, h := s.live(hicache.TierDevice, p), s.live(hicache.TierHost, p); d != before[2*p] || h != before[2*p+1] {
			t.Fatalf("pool %d: %d device and %d host pages, before %v", p, d, h, before[2*p:2*p+2])
		}
	}
	if st := s.c.Stats(); st.PinsNow != 1 || st.LeasesNow != 1 {
		t.Fatalf("%d pins, %d leases", st.PinsNow, st.LeasesNow)
	}
	held.Release()
	wantHit(t, s.run(a), 0, 36, 0)
}

// TestHostPressure is G53: a match on the host holds its copies through every host eviction; once it is loaded only the device is pinned, and
// the host copies may go.
func TestHostPressure(t *testing.T) {
	for name, pools := range geometries() {
		t.Run(name, func(t *testing.T) { hostPressure(t, pools) })
	}
}

func hostPressure(t *testing.T, pools []hicache.PoolOptions) {
	s := open(t, hicache.Options{DeviceBytes: 64 * kib, HostBytes: 16 * kib, Pools: pools})
	a := prompt(1, 24)
	s.run(a)
	s.flush()
	s.evict(hicache.TierDevice)
	m := s.c.MatchWith(a, hicache.MatchOptions{FullHit: true})
	defer m.Release()
	for i := range 30 {
		s.run(prompt(10+i, 30))
		s.flush()
	}
	if s.c.Stats().Evicted.Host == 0 {
		t.Fatal("no host eviction: the test shows nothing")
	}
	lease, err := s.c.Load(ctx, m, hicache.LoadOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer lease.Release()
	if err := lease.Wait(ctx); err != nil {
		t.Fatal(err)
	}
	wantHit(t, lease.Hit(), 0, 24, 0)
	s.check("loaded", "", a, lease.PoolKernelIDs, 0, 6)
	s.evict(hicache.TierHost)
	if n := s.live(hicache.TierHost, 0); n != 0 {
		t.Fatalf("%d host pages are held by a lease that has its pages on the device", n)
	}
	s.evict(hicache.TierDevice)
	s.check("leased", "", a, lease.PoolKernelIDs, 0, 6)
}

// TestAdmit: admissions are priced together, make room before the load, promise nothing when they are refused, and end.
func TestAdmit(t *testing.T) {
	s := open(t, hicache.Options{DeviceBytes: 16 * kib, HostBytes: 64 * kib, Pools: fullPools()}) // 31 pages
	for i := range 3 {
		s.run(prompt(i, 40))
	}
	s.flush()
	m := s.c.Match(prompt(7, 40))
	defer m.Release()
	var list []*hicache.Admission
	for range 2 {
		a, err := s.c.Admit(m, hicache.AdmitOptions{MaxNew: 8}) // 12 pages and 2 of headroom
		if err != nil {
			t.Fatal(err)
		}
		if a.Pages()[0] != 14 {
			t.Fatalf("priced at %d pages", a.Pages()[0])
		}
		list = append(list, a)
	}
	pins := s.c.Stats().PinsNow
	if _, err := s.c.Admit(m, hicache.AdmitOptions{}); !errors.Is(err, hicache.ErrNoCapacity) {
		t.Fatalf("a third admission: %v", err)
	}
	if s.c.Stats().PinsNow != pins {
		t.Fatal("a refused admission left a pin")
	}
	lease, err := s.c.Load(ctx, m, hicache.LoadOptions{})
	if err != nil {
		t.Fatal(err)
	}
	list[0].Release()
	list[0].Release()
	lease.Release()
	a, err := s.c.Admit(m, hicache.AdmitOptions{}) // 12 pages beside the 14 of the other
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.c.Admit(m, hicache.AdmitOptions{}); !errors.Is(err, hicache.ErrNoCapacity) {
		t.Fatalf("a third admission after one was released twice: %v", err)
	}
	a.Release()
	list[1].Release()
}

// TestEstimate: the match says what its load costs, and a server that computes faster leaves it.
func TestEstimate(t *testing.T) {
	s := open(t, hicache.Options{DeviceBytes: 64 * kib, HostBytes: 64 * kib, Pools: windowPools()})
	a := prompt(1, 41)
	s.run(a)
	s.flush()
	for round := range 2 {
		s.evict(hicache.TierDevice)
		m := s.c.Match(a)
		e := m.Estimate(1e15)
		var want uint64 // Ten pages of FULL, and of each window what reaches back from them.
		for _, pool := range s.c.Pools() {
			pages := 10
			if pool.Role == hicache.SWA {
				pages = (pool.WindowTokens + pageTokens - 1) / pageTokens
			}
			want += uint64(pages) * pool.PageBytes
		}
		if e.Bytes != want || e.Recompute != 0 && round == 0 {
			t.Fatalf("estimate %+v", e)
		}
		if round == 1 && (e.Load == 0 || m.Estimate(1e-3).Worthwhile() != true) {
			t.Fatalf("estimate after a load %+v", e)
		}
		lease, err := s.c.Load(ctx, m, hicache.LoadOptions{NoLoadBack: true})
		if err != nil {
			t.Fatal(err)
		}
		wantHit(t, lease.Hit(), 0, 0, 0)
		lease.Release()
		m.Release()
		wantHit(t, s.run(a), 0, 40, 0)
	}
}

// TestPolicySwitch is G55: a switch is refused, with no side effect, when the host could not have come about under the new policy.
func TestPolicySwitch(t *testing.T) {
	s := open(t, hicache.Options{DeviceBytes: 64 * kib, HostBytes: 64 * kib, Pools: fullPools(), WritePolicy: hicache.WriteBack})
	a := prompt(1, 41)
	s.run(a)
	if n, err := s.c.Evict(hicache.TierDevice, 0, 4); err != nil || n != 4 { // the tail goes to the host, its parent is not there
		t.Fatal(n, err)
	}
	s.flush()
	if err := s.c.SetWritePolicy(hicache.WriteThrough); !errors.Is(err, hicache.ErrUnsupported) {
		t.Fatalf("got %v", err)
	}
	s.evict(hicache.TierDevice)
	s.flush()
	if err := s.c.SetWritePolicy(hicache.WriteThrough); err != nil {
		t.Fatalf("a chain from the root: %v", err)
	}
	wantHit(t, s.run(a), 0, 40, 0)
	s.run(prompt(2, 41))
	s.flush()
	if n := s.live(hicache.TierHost, 0); n != 20 {
		t.Fatalf("%d host pages, want both prompts", n)
	}
	back := open(t, hicache.Options{DeviceBytes: 64 * kib, HostBytes: 64 * kib, Pools: fullPools()})
	if err := back.c.SetWritePolicy(hicache.WriteBack); err != nil {
		t.Fatal(err)
	}
	back.run(a)
	if n, err := back.c.Evict(hicache.TierDevice, 0, 4); err != nil || n != 4 {
		t.Fatal(n, err)
	}
	back.flush()
	if n := back.live(hicache.TierHost, 0); n != 4 {
		t.Fatalf("%d host pages, want the tail, whose parent is on the device alone", n)
	}
	none := open(t, hicache.Options{DeviceBytes: 64 * kib, Pools: fullPools()})
	if err := none.c.SetWritePolicy(hicache.WriteBack); !errors.Is(err, hicache.ErrUnsupported) {
		t.Fatalf("write_back without host: %v", err)
	}
}

// TestWindowEviction is G56 and field case C36, under write_back: a window that the host has goes without a copy; one that it lacks is copied
// first and comes back; where the host is full only the window is lost.
func TestWindowEviction(t *testing.T) {
	pools := []hicache.PoolOptions{
		{Role: hicache.Full, Layers: []int{0}, LayerBytes: 64},
		{Role: hicache.SWA, Layers: []int{1}, LayerBytes: 64, WindowTokens: 8},
	}
	const full, swa = 0, 1
	s := open(t, hicache.Options{DeviceBytes: 64 * kib, HostBytes: 32 * kib, Pools: pools, WritePolicy: hicache.WriteBack})
	a := prompt(1, 40)
	s.run(append(a[:20:20], 7))
	s.run(append(a[:40:40], 7)) // 10 pages in two nodes, all with a window page
	backUps := func() uint64 { s.flush(); return s.c.Stats().BackUpPages }
	before := backUps()
	if n, err := s.c.Evict(hicache.TierDevice, swa, 3); err != nil || n < 3 {
		t.Fatal(n, err)
	}
	if got := backUps() - before; got != 3 {
		t.Fatalf("%d pages were copied for 3 unbacked window pages", got)
	}
	if f, w := s.live(hicache.TierDevice, full), s.live(hicache.TierDevice, swa); f != 10 || w != 7 {
		t.Fatalf("%d full and %d window pages are left on the device", f, w)
	}
	if w := s.live(hicache.TierHost, swa); w != 3 {
		t.Fatalf("%d window pages are on the host", w)
	}
	wantHit(t, s.run(a[:13]), 12, 0, 0) // ends inside: its window comes back from the host
	if w := s.live(hicache.TierDevice, swa); w < 9 {
		t.Fatalf("%d window pages are on the device after they were needed", w)
	}
	s.run(append(a[:40:40], 7)) // the last window is the newest
	before = backUps()
	if n, err := s.c.Evict(hicache.TierDevice, swa, 4); err != nil || n < 4 { // the two that the host lacks are older and go first
		t.Fatal(n, err)
	}
	if got := backUps() - before; got != 2 {
		t.Fatalf("%d pages were copied for 4 window pages of which the host has 2", got)
	}
	s.run(append(a[:40:40], 7))

	// A host that is full and pinned.
	tight := open(t, hicache.Options{DeviceBytes: 64 * kib, HostBytes: 2 * kib, Pools: pools, WritePolicy: hicache.WriteBack})
	b := prompt(2, 40)
	tight.run(b)
	if _, err := tight.c.Evict(hicache.TierDevice, full, 4); err != nil {
		t.Fatal(err)
	}
	tight.flush()
	pin, err := tight.c.PinPrefix(hicache.Namespace{}, b, 0)
	if err != nil {
		t.Fatal(err)
	}
	tight.run(prompt(3, 41))
	f, w := tight.live(hicache.TierDevice, full), tight.live(hicache.TierDevice, swa)
	if _, err := tight.c.Evict(hicache.TierDevice, swa, 2); err != nil {
		t.Fatal(err)
	}
	tight.flush()
	if f2, w2 := tight.live(hicache.TierDevice, full), tight.live(hicache.TierDevice, swa); f2 < f-2 || w2 >= w {
		t.Fatalf("full pages %d → %d, window pages %d → %d", f, f2, w, w2)
	}
	pin.Release()
}

// TestHostSmallerThanDevice is field case C19, with its numbers: the host keeps turning over although all it holds mirrors the device, and a
// prefetch finds room.
func TestHostSmallerThanDevice(t *testing.T) {
	pools := fullPools()
	s := open(t, hicache.Options{DeviceBytes: 101 * 512, HostBytes: 50 * 512, Pools: pools, Storage: file.New(folder(t))})
	for i := range 200 {
		s.run(prompt(i, 4))
		if i%20 == 0 {
			s.flush()
		}
	}
	s.flush()
	if st := s.c.Stats(); st.BackUpPages < 150 || st.Evicted.Host < 100 {
		t.Fatalf("%d pages were backed up, %d skipped, %d host pages evicted", st.BackUpPages, st.BackUpsSkippedPages, st.Evicted.Host)
	}
	a := prompt(1000, 41)
	s.run(a)
	s.flush()
	s.evict(hicache.TierDevice)
	s.evict(hicache.TierHost)
	for i := range 60 {
		s.run(prompt(2000+i, 5))
	}
	s.flush()
	if hit := s.run(a); hit.Storage != 40 {
		t.Fatalf("hit %+v, want 10 pages from storage", hit)
	}
}

// TestPendingCountsBackUps: a refusal says how much room comes once the back-ups in flight have ended, and counts nothing that a request holds.
func TestPendingCountsBackUps(t *testing.T) {
	s := open(t, hicache.Options{DeviceBytes: 16 * kib, HostBytes: 64 * kib, Pools: windowPools(), Faults: &hicache.FaultOptions{Seed: 1}})
	if err := s.c.HoldTransfers(true, 0); err != nil {
		t.Fatal(err)
	}
	s.run(prompt(1, 60))
	m := s.c.Match(prompt(2, 61))
	defer m.Release()
	refused := func(want uint64) {
		t.Helper()
		_, err := s.c.Load(ctx, m, hicache.LoadOptions{})
		var e *hicache.Error
		if !errors.Is(err, hicache.ErrNoCapacity) || !errors.As(err, &e) || e.Pending != want {
			t.Errorf("%v; want %d bytes pending", err, want)
		}
		_, err = s.c.Admit(m, hicache.AdmitOptions{})
		if !errors.Is(err, hicache.ErrNoCapacity) || !errors.As(err, &e) || e.Pending != want {
			t.Errorf("%v; want %d bytes pending", err, want)
		}
	}
	var bytes uint64
	for _, p := range s.c.Pools() {
		bytes += 15 * p.PageBytes
	}
	refused(bytes)
	held := s.c.MatchWith(prompt(1, 60), hicache.MatchOptions{FullHit: true})
	refused(0)
	held.Release()
	refused(bytes)
	if err := s.c.HoldTransfers(false, 0); err != nil {
		t.Fatal(err)
	}
	s.flush()
	lease, err := s.c.Load(ctx, m, hicache.LoadOptions{})
	if err != nil {
		t.Fatal(err)
	}
	lease.Release()
}

// TestAdmitUnderWriteBack: what has to go is backed up first, and until then there is no room; that is no other kind of error.
func TestAdmitUnderWriteBack(t *testing.T) {
	s := open(t, hicache.Options{DeviceBytes: 16 * kib, HostBytes: 64 * kib, Pools: windowPools(), WritePolicy: hicache.WriteBack,
		Faults: &hicache.FaultOptions{Seed: 1}})
	s.run(prompt(1, 60))
	if err := s.c.HoldTransfers(true, 0); err != nil {
		t.Fatal(err)
	}
	m := s.c.Match(prompt(2, 61))
	defer m.Release()
	var e *hicache.Error
	if _, err := s.c.Admit(m, hicache.AdmitOptions{}); !errors.Is(err, hicache.ErrNoCapacity) || !errors.As(err, &e) || e.Need == 0 || e.Pending == 0 {
		t.Fatalf("while it is backed up: %v", err)
	}
	if err := s.c.HoldTransfers(false, 0); err != nil {
		t.Fatal(err)
	}
	s.flush()
	a, err := s.c.Admit(m, hicache.AdmitOptions{})
	if err != nil {
		t.Fatal(err)
	}
	a.Release()
}
