package hicache_test

import (
	"errors"
	"reflect"
	"testing"
	"time"

	hicache "github.com/hicache/hicache/gohicache"
	"github.com/hicache/hicache/gohicache/metrics"
	"github.com/hicache/hicache/gohicache/storage/file"
)

// moved lists the counters and gauges of Stats that are not zero; those by tier one by one.
func moved(s hicache.Stats) (out []string) {
	v := reflect.ValueOf(s)
	for i := range v.NumField() {
		name := v.Type().Field(i).Name
		switch f := v.Field(i).Interface().(type) {
		case metrics.TierCount:
			for tier, n := range map[string]uint64{".Device": f.Device, ".Host": f.Host, ".Storage": f.Storage} {
				if n > 0 {
					out = append(out, name+tier)
				}
			}
		case metrics.Histogram:
			if f.Count > 0 {
				out = append(out, name)
			}
		default:
			if !v.Field(i).IsZero() {
				out = append(out, name)
			}
		}
	}
	return out
}

// everyCounter lists all of them.
func everyCounter() (out []string) {
	of := reflect.TypeFor[hicache.Stats]()
	for i := range of.NumField() {
		if f := of.Field(i); f.Type == reflect.TypeFor[metrics.TierCount]() {
			out = append(out, f.Name+".Device", f.Name+".Host", f.Name+".Storage")
		} else {
			out = append(out, f.Name)
		}
	}
	return out
}

// still are the counters that no scenario moves, with the reason; a test of another package shows that the second can.
var still = map[string]string{
	"FenceWaitsTakes": "a take never waits for a fence",
	"InternalErrors":  "a fault of this library",
}

// TestEveryCounterMoves runs scenarios and expects each counter and gauge to have moved in the one that is about it, and the two that must not to
// have stayed.
func TestEveryCounterMoves(t *testing.T) {
	seen := map[string]string{}
	scenario := func(name string, o hicache.Options, want []string, do func(t *testing.T, s *server)) {
		t.Run(name, func(t *testing.T) {
			if o.Pools == nil {
				o.Pools = fullPools()
			}
			s := open(t, o)
			do(t, s)
			now := map[string]bool{}
			for _, c := range moved(s.c.Stats()) {
				now[c] = true
			}
			for _, c := range want {
				if !now[c] {
					t.Errorf("%s did not move", c)
				}
				seen[c] = name
			}
			for c, why := range still {
				if now[c] {
					t.Errorf("%s moved, but %s", c, why)
				}
			}
		})
	}
	a := prompt(1, 41)
	scenario("three tiers", hicache.Options{DeviceBytes: 16 * kib, HostBytes: 16 * kib, Storage: file.New(folder(t)), Events: true},
		[]string{"Matches", "Loads", "Inserts", "MatchedTokens", "HitTokens.Device", "HitTokens.Host", "HitTokens.Storage", "LoadBacks", "LoadBackPages", "BackUps", "BackUpPages",
			"BytesH2D", "BytesD2H", "Prefetches", "PrefetchPages", "StoredPages", "StorageReadBytes", "StorageWriteBytes", "StorageMisses", "Evicted.Device", "Evicted.Host",
			"Demoted", "ZeroedBytes", "Submit", "Events", "EventGaps"},
		func(t *testing.T, s *server) {
			short := stream(t, s.c, hicache.EventOptions{QueuePages: 3})
			next(t, short)
			s.run(a)
			s.run(a)
			s.flush()
			s.evict(hicache.TierDevice)
			s.run(a)
			s.evict(hicache.TierDevice)
			s.evict(hicache.TierHost)
			s.run(a)
		})
	scenario("decode", hicache.Options{DeviceBytes: 16 * kib, Pools: windowPools()}, []string{"Steps", "SinkTranslations", "Tombstoned", "Dropped", "LeasesNow", "PinsNow"},
		func(t *testing.T, s *server) {
			s.run(prompt(2, 60))
			if _, err := s.c.Evict(hicache.TierDevice, 1, 4); err != nil {
				t.Fatal(err)
			}
			if _, err := s.c.Evict(hicache.TierDevice, 0, 4); err != nil {
				t.Fatal(err)
			}
			seq, err := s.c.Begin(ctx, prompt(2, 60), hicache.SequenceOptions{WindowTailOnly: true})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(seq.Abort)
			step, err := s.c.Step(ctx, 0, []hicache.Growth{{Sequence: seq, NewTokens: 1}}, false)
			if err != nil {
				t.Fatal(err)
			}
			if _, _, err := step.Tables(1); err != nil {
				t.Fatal(err)
			}
			step.Close()
		})
	scenario("full device", hicache.Options{DeviceBytes: 8 * kib}, []string{"NoCapacity", "CapacityWait"}, func(t *testing.T, s *server) {
		hold := s.c.Match(a)
		lease, err := s.c.Load(ctx, hold, hicache.LoadOptions{})
		if err != nil {
			t.Fatal(err)
		}
		hold.Release()
		m := s.c.Match(prompt(3, 41))
		defer m.Release()
		if _, err := s.c.Load(ctx, m, hicache.LoadOptions{}); !errors.Is(err, hicache.ErrNoCapacity) {
			t.Fatalf("err %v", err)
		}
		done := make(chan error)
		go func() {
			l, err := s.c.Load(ctx, m, hicache.LoadOptions{Wait: true})
			if err == nil {
				l.Release()
			}
			done <- err
		}()
		await(t, "the load waits", func() bool { return s.c.Stats().CapacityWait > 0 })
		lease.Release()
		if err := <-done; err != nil {
			t.Fatal(err)
		}
	})
	scenario("full host", hicache.Options{DeviceBytes: 16 * kib, HostBytes: 4 * kib}, []string{"BackUpsSkipped", "BackUpsSkippedPages"}, func(t *testing.T, s *server) {
		pinAll(t, s, prompt(1, 33)) // 8 pages, all that fit
		s.run(prompt(2, 41))
		s.run(prompt(3, 41))
	})
	scenario("full host, write back", hicache.Options{DeviceBytes: 8 * kib, HostBytes: 4 * kib, WritePolicy: hicache.WriteBack}, []string{"HostPressureDrops"},
		func(t *testing.T, s *server) {
			pinAll(t, s, prompt(1, 41))
			for i := range 3 {
				s.run(prompt(2+i, 41))
			}
		})
	scenario("failing copies", hicache.Options{DeviceBytes: 16 * kib, HostBytes: 16 * kib, Faults: &hicache.FaultOptions{FailTransferN: 1}}, []string{"TransfersFailed"},
		func(t *testing.T, s *server) {
			s.run(a)
			s.flush()
		})
	scenario("copies in flight", hicache.Options{DeviceBytes: 16 * kib, HostBytes: 16 * kib, Faults: &hicache.FaultOptions{Hold: true}},
		[]string{"TransfersInFlightNow", "Moves", "MovedBytes", "MovesDuringTransfer"}, func(t *testing.T, s *server) {
			holes(t, s)
			s.run(prompt(9, 13)) // its back-up is held
			if r, err := s.c.Compact(hicache.CompactBudget{}); err != nil || r.MovedPages == 0 {
				t.Fatalf("%+v, %v", r, err)
			}
			t.Cleanup(func() {
				if err := s.c.HoldTransfers(false, 0); err != nil {
					t.Error(err)
				}
			})
		})
	scenario("host moves", hicache.Options{DeviceBytes: 16 * kib, HostBytes: 16 * kib}, []string{"HostMoves"}, func(t *testing.T, s *server) {
		for i := range 4 {
			s.run(prompt(i, 41))
			s.flush()
		}
		if _, err := s.c.Evict(hicache.TierHost, 0, 10); err != nil {
			t.Fatal(err)
		}
		if _, err := s.c.Compact(hicache.CompactBudget{Tier: hicache.TierHost}); err != nil {
			t.Fatal(err)
		}
	})
	scenario("moves blocked", hicache.Options{DeviceBytes: 16 * kib, Pools: windowPools()}, []string{"MovesBlocked"}, blockMoves)
	slow := newMemory()
	slow.gate = make(chan struct{})
	scenario("a slow store", hicache.Options{DeviceBytes: 16 * kib, HostBytes: 64 * kib, Storage: slow, StoreQueueMax: 14, Prefetch: hicache.PrefetchOff}, []string{"StoreQueueNow", "StoreSkipped"},
		func(t *testing.T, s *server) {
			t.Cleanup(func() { close(slow.gate) })
			s.run(a)
			await(t, "a page waits", func() bool { return s.c.Stats().StoreQueueNow > 0 })
			for i := range 6 {
				s.run(prompt(20+i, 61))
				if err := s.c.Idle(); err != nil {
					t.Fatal(err)
				}
			}
			await(t, "pages are skipped", func() bool { return s.c.Stats().StoreSkipped > 0 })
		})
	broken := newMemory()
	scenario("a broken store", hicache.Options{DeviceBytes: 16 * kib, HostBytes: 16 * kib, Storage: broken}, []string{"StorageFaults", "PrefetchesCut"},
		func(t *testing.T, s *server) {
			s.run(a)
			s.flush()
			s.evict(hicache.TierDevice)
			s.evict(hicache.TierHost)
			broken.set(func(m *memory) { m.getErr = errors.New("broken") })
			s.run(a)
		})
	dir := folder(t)
	scenario("a small store", hicache.Options{DeviceBytes: 16 * kib, HostBytes: 16 * kib, Storage: file.New(folder(t), file.Options{BytesMax: 16 * kib})},
		[]string{"Evicted.Storage"}, func(t *testing.T, s *server) {
			for i := range 12 {
				s.run(prompt(i, 61))
				s.flush()
			}
		})
	scenario("a damaged store", hicache.Options{DeviceBytes: 16 * kib, HostBytes: 16 * kib, Storage: file.New(dir)}, []string{"StorageCorrupt"},
		func(t *testing.T, s *server) {
			s.run(a)
			s.flush()
			s.evict(hicache.TierDevice)
			s.evict(hicache.TierHost)
			damage(t, dir)
			s.run(a)
		})
	off := newMemory()
	off.ready = errors.New("gone")
	scenario("no store", hicache.Options{DeviceBytes: 16 * kib, HostBytes: 16 * kib, Storage: off}, []string{"Degraded"}, func(*testing.T, *server) {})
	scenario("an expired lease", hicache.Options{DeviceBytes: 16 * kib}, []string{"LeasesExpiredInUse"}, func(t *testing.T, s *server) {
		_, end := inUse(t, s, a)
		await(t, "it expires", func() bool { return s.c.Stats().LeasesExpiredInUse > 0 })
		end()
	})
	for _, c := range everyCounter() {
		if _, ok := still[c]; !ok && seen[c] == "" {
			t.Errorf("no scenario is about %s", c)
		}
	}
}

// await waits until something is so.
func await(t *testing.T, what string, so func() bool) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); !so(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("waited in vain until %s", what)
		}
	}
}

// pinAll fills the host with a prefix that nothing can push out.
func pinAll(t *testing.T, s *server, tokens []uint32) {
	t.Helper()
	s.run(tokens)
	s.flush()
	s.evict(hicache.TierDevice)
	s.flush()
	pin, err := s.c.PinPrefix(hicache.Namespace{}, tokens, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pin.Release)
}

// holes leaves gaps between the device pages that are in use, and nothing in flight.
func holes(t *testing.T, s *server) {
	t.Helper()
	if err := s.c.HoldTransfers(false, 0); err != nil {
		t.Fatal(err)
	}
	for i := range 4 {
		s.run(prompt(i, 21))
	}
	s.flush()
	if _, err := s.c.Evict(hicache.TierDevice, 0, 9); err != nil {
		t.Fatal(err)
	}
	if err := s.c.HoldTransfers(true, 0); err != nil {
		t.Fatal(err)
	}
}

// blockMoves leaves room that only a move of leased pages could make.
func blockMoves(t *testing.T, s *server) {
	var leases []*hicache.Lease
	for i := 0; ; i++ {
		m := s.c.Match(prompt(i, 9))
		lease, err := s.c.Load(ctx, m, hicache.LoadOptions{})
		m.Release()
		if errors.Is(err, hicache.ErrNoCapacity) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		leases = append(leases, lease)
	}
	for i, l := range leases {
		if i%2 == 0 {
			l.Release()
		} else {
			t.Cleanup(l.Release)
		}
	}
	for n := 17; s.c.Stats().MovesBlocked == 0 && n < 400; n += 8 {
		m := s.c.Match(prompt(1000+n, n))
		if lease, err := s.c.Load(ctx, m, hicache.LoadOptions{WindowTailOnly: true}); err == nil {
			lease.Release()
		}
		m.Release()
	}
}
