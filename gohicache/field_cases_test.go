package hicache_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	hicache "github.com/hicache/hicache/gohicache"
	"github.com/hicache/hicache/gohicache/storage"
)

const fullPageBytes = 512 // of fullPools: 4 tokens, 2 layers, 64 bytes

// TestHostKeepsTurningOver (C19): under write_through with a host half as large as the device, mirrors make way: 200 inserts are backed up or counted
// as skipped, and storage still finds room for what it brings.
func TestHostKeepsTurningOver(t *testing.T) {
	s := open(t, hicache.Options{DeviceBytes: 101 * fullPageBytes, HostBytes: 50 * fullPageBytes, Pools: fullPools(), Storage: newMemory()})
	for i := range 200 {
		s.run(prompt(i, 9)) // 2 pages
		s.flush()
	}
	st := s.c.Stats()
	if n := st.BackUps + st.BackUpsSkipped; n < 150 || st.Evicted.Host < 100 {
		t.Errorf("%d back-ups, %d skipped, %d evicted from the host", st.BackUps, st.BackUpsSkipped, st.Evicted.Host)
	}
	long := prompt(1000, 41)
	s.run(long)
	s.flush()
	s.evict(hicache.TierDevice)
	s.evict(hicache.TierHost)
	for i := range 30 {
		s.run(prompt(2000+i, 9)) // the host is full of mirrors again
		s.flush()
	}
	wantHit(t, s.run(long), 0, 0, 40)
}

// TestBurstOverASmallHost (C34): 10,000 requests over a host of 50 pages end well, or for want of room; nothing else.
func TestBurstOverASmallHost(t *testing.T) {
	n := 10_000
	if testing.Short() {
		n = 1000
	}
	for _, policy := range []hicache.WritePolicy{hicache.WriteThrough, hicache.WriteBack} {
		s := open(t, hicache.Options{DeviceBytes: 101 * fullPageBytes, HostBytes: 50 * fullPageBytes, Pools: fullPools(), WritePolicy: policy})
		r := rand.New(rand.NewPCG(3, 4))
		var held []*hicache.Lease
		refused := 0
		for i := range n {
			tokens := prompt(r.IntN(600), 5+r.IntN(60))
			m := s.c.Match(tokens)
			lease, err := s.c.Load(ctx, m, hicache.LoadOptions{})
			m.Release()
			if errors.Is(err, hicache.ErrNoCapacity) {
				refused++
			} else if err != nil {
				t.Fatalf("request %d: %v", i, err)
			} else if err := s.c.Insert(lease, tokens); err != nil {
				t.Fatalf("request %d: %v", i, err)
			} else {
				held = append(held, lease)
			}
			for len(held) > r.IntN(14) {
				held[0].Release()
				held = held[1:]
			}
		}
		for _, l := range held {
			l.Release()
		}
		if refused == 0 || s.c.Stats().BackUps == 0 {
			t.Errorf("%v: %d refused, %+v: the burst shows nothing", policy, refused, s.c.Stats())
		}
	}
}

// failingPut fails the n-th Put as a whole.
type failingPut struct {
	*memory
	n    atomic.Int32
	fail int32
}

func (s *failingPut) Put(ctx context.Context, keys []storage.Key, src [][]byte, errs []error) error {
	if s.n.Add(1) == s.fail {
		return errors.New("this batch fails")
	}
	return s.memory.Put(ctx, keys, src, errs)
}

// TestFailedBatchIsNotDurable (C38): when the second of five batches fails, the first is durable and nothing after it is claimed; it is counted, and
// tried again when the path is next used.
func TestFailedBatchIsNotDurable(t *testing.T) {
	store := &failingPut{memory: newMemory(), fail: 2}
	o := hicache.Options{DeviceBytes: 64 * kib, HostBytes: 64 * kib, Pools: fullPools(), Storage: store, StorageBatch: 3}
	s := open(t, o)
	tokens := prompt(1, 61) // 15 pages
	s.run(tokens)
	s.flush()
	st := s.c.Stats()
	if n := len(store.keys()); n != 3 || st.StoredPages != 3 || st.StoreSkipped != 12 || st.StorageFaults != 1 {
		t.Fatalf("%d objects, %d pages stored, %d skipped, %d faults; want 3, 3, 12, 1", n, st.StoredPages, st.StoreSkipped, st.StorageFaults)
	}
	other := newMemory() // another process finds one batch; what it stores itself is not to be mistaken for a second try
	store.set(func(m *memory) { other.objects = maps.Clone(m.objects) })
	o.Storage = other
	wantHit(t, open(t, o).run(tokens), 0, 0, 12)
	s.run(tokens)
	s.flush()
	if n := len(store.keys()); n != 15 {
		t.Fatalf("%d objects after another use, want 15", n)
	}
}

// lostObject fails one object of a batch that is otherwise stored.
type lostObject struct {
	*memory
	at   int
	once atomic.Bool
}

func (s *lostObject) Put(ctx context.Context, keys []storage.Key, src [][]byte, errs []error) error {
	if s.once.Swap(true) {
		return s.memory.Put(ctx, keys, src, errs)
	}
	if err := s.memory.Put(ctx, keys, src, errs); err != nil {
		return err
	}
	s.set(func(m *memory) { delete(m.objects, keys[s.at]) })
	errs[s.at] = errors.New("this object fails")
	return nil
}

// TestFailedObjectIsNotDurable (C38): where one object of a batch fails, the pages before its own are durable, that page and those behind it are not, and
// are tried again.
func TestFailedObjectIsNotDurable(t *testing.T) {
	store := &lostObject{memory: newMemory(), at: 5}
	s := open(t, hicache.Options{DeviceBytes: 64 * kib, HostBytes: 64 * kib, Pools: fullPools(), Storage: store, StorageBatch: 8})
	tokens := prompt(1, 61) // 15 pages
	s.run(tokens)
	s.flush()
	if st := s.c.Stats(); st.StoredPages != 5 || st.StoreSkipped != 10 || st.StorageFaults != 1 {
		t.Fatalf("%d pages stored, %d skipped, %d faults; want 5, 10, 1", st.StoredPages, st.StoreSkipped, st.StorageFaults)
	}
	s.run(tokens)
	s.flush()
	if n := len(store.keys()); n != 15 {
		t.Fatalf("%d objects after another use, want 15", n)
	}
}

// TestRowSizes (C52): odd rows go through every tier; rows that are no multiple of 16 bytes are refused when the cache opens, by pool and row.
func TestRowSizes(t *testing.T) {
	for _, row := range []uint64{656, 576 * 2, 1152, 16} {
		s := open(t, hicache.Options{DeviceBytes: 64 * row * pageTokens, HostBytes: 64 * row * pageTokens, Storage: newMemory(),
			Pools: []hicache.PoolOptions{{Role: hicache.Full, Layers: []int{0}, KRowBytes: row}}})
		s.run(prompt(1, 41))
		s.flush()
		s.evict(hicache.TierDevice)
		wantHit(t, s.run(prompt(1, 41)), 0, 40, 0)
		s.flush()
		s.evict(hicache.TierDevice)
		s.evict(hicache.TierHost)
		wantHit(t, s.run(prompt(1, 41)), 0, 0, 40)
	}
	for _, row := range []uint64{2, 1, 24} {
		c, err := hicache.Open(ctx, &hicache.Options{DeviceBytes: 1 << 20, Pools: []hicache.PoolOptions{{Name: "latent", Role: hicache.Full, Layers: []int{0}, KRowBytes: row}}})
		if !errors.Is(err, hicache.ErrInvalid) || !strings.Contains(err.Error(), "latent") || !strings.Contains(err.Error(), fmt.Sprint(row)) {
			t.Errorf("a row of %d bytes: %v", row, err)
		}
		if err == nil {
			_ = c.Close()
		}
	}
}

// TestSmallestWindowDecides (C65): a prompt that crosses only the smallest window is reused whole, with that window's last pages alone on the device.
func TestSmallestWindowDecides(t *testing.T) {
	s := open(t, hicache.Options{DeviceBytes: 64 * kib, Pools: windowPools()}) // windows of 12 and 18 tokens
	tokens := prompt(1, 17)
	s.run(tokens)
	if _, err := s.c.Evict(hicache.TierDevice, 1, 1); err != nil { // the page before the smaller window
		t.Fatal(err)
	}
	if n := s.live(hicache.TierDevice, 1); n != 3 {
		t.Fatalf("%d pages of the smaller window are left", n)
	}
	wantHit(t, s.run(tokens), 16, 0, 0)
}

// TestCheckpointsBehindADivergence (C68): with states kept every 8 tokens, a prompt that leaves the known path at token k goes on from at most 8 tokens
// before it.
func TestCheckpointsBehindADivergence(t *testing.T) {
	s := stateServer{server: open(t, hicache.Options{DeviceBytes: 64 * kib, Pools: statePools()})}
	tokens := prompt(1, 48)
	seq, err := s.c.Begin(ctx, tokens[:8], hicache.SequenceOptions{})
	if err != nil {
		t.Fatal(err)
	}
	a := &answer{seq, tokens[:8], -1}
	for {
		if err := s.step([]*answer{a}, func() uint32 { return tokens[len(a.tokens)] }); err != nil {
			t.Fatal(err)
		}
		if len(a.tokens)%8 == 0 {
			if err := seq.Publish(0); err != nil {
				t.Fatal(err)
			}
		}
		if len(a.tokens) == 48 {
			break
		}
	}
	if err := seq.Finish(); err != nil {
		t.Fatal(err)
	}
	for k := 1; k < 48; k++ {
		other := append(append([]uint32(nil), tokens[:k]...), 1<<30, 1<<30+1)
		m := s.c.Match(other)
		if n := m.Tokens(); n > k || k-n >= 8 {
			t.Errorf("a prompt that diverges at token %d goes on from %d", k, n)
		}
		m.Release()
	}
}

// TestStatePoolsAreNeededTogether (C70): a prefix needs the states of every State pool, and pools with equal token hashes keep apart in storage.
func TestStatePoolsAreNeededTogether(t *testing.T) {
	store := newMemory()
	s := stateServer{server: open(t, hicache.Options{DeviceBytes: 64 * kib, HostBytes: 64 * kib, Pools: statePools(), Storage: store})}
	tokens := prompt(1, 16)
	seq, err := s.c.Begin(ctx, tokens, hicache.SequenceOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.step([]*answer{{seq, tokens, -1}}, nil); err != nil {
		t.Fatal(err)
	}
	if err := seq.Finish(); err != nil {
		t.Fatal(err)
	}
	found := func() int {
		m := s.c.MatchWith(tokens, hicache.MatchOptions{FullHit: true})
		defer m.Release()
		return m.Tokens()
	}
	if n := found(); n != 16 {
		t.Fatalf("%d tokens", n)
	}
	s.flush()
	if n := len(store.keys()); n != 6 {
		t.Fatalf("%d objects of 4 full pages and 2 states", n)
	}
	bodies := 0
	store.set(func(m *memory) {
		for _, o := range m.objects {
			for pool := 1; pool <= 2; pool++ {
				if bytes.Equal(o[:32], stateAfter(tokens, pool)) {
					bodies++
				}
			}
		}
	})
	if bodies != 2 {
		t.Fatalf("%d states in storage", bodies)
	}
	for _, tier := range []hicache.Tier{hicache.TierDevice, hicache.TierHost} {
		if _, err := s.c.Evict(tier, 2, 1); err != nil {
			t.Fatal(err)
		}
	}
	if n := found(); n != 0 {
		t.Fatalf("%d tokens with one of two states", n)
	}
}

// TestBadInput: clear errors, and nothing is lost.
func TestBadInput(t *testing.T) {
	s := open(t, hicache.Options{DeviceBytes: 32 * kib, HostBytes: 32 * kib, Pools: windowPools()})
	for _, n := range []int{0, 1, pageTokens - 1} { // nothing to find, nothing to publish, no error
		tokens := prompt(1, n)
		m := s.c.Match(tokens)
		if m.Tokens() != 0 || m.Err() != nil {
			t.Errorf("%d tokens: %d found, %v", n, m.Tokens(), m.Err())
		}
		lease, err := s.c.Load(ctx, m, hicache.LoadOptions{})
		if err != nil {
			t.Fatalf("%d tokens: %v", n, err)
		}
		if err := s.c.Insert(lease, tokens); err != nil {
			t.Errorf("%d tokens: %v", n, err)
		}
		lease.Release()
		m.Release()
		seq, err := s.c.Begin(ctx, tokens, hicache.SequenceOptions{})
		if err != nil {
			t.Fatalf("%d tokens: %v", n, err)
		}
		if err := seq.Finish(); err != nil {
			t.Errorf("%d tokens: %v", n, err)
		}
	}
	huge := make([]uint32, 2_000_000)
	m := s.c.Match(huge)
	if _, err := s.c.Load(ctx, m, hicache.LoadOptions{Wait: true}); !errors.Is(err, hicache.ErrInfeasible) {
		t.Errorf("2 M tokens on a small device: %v", err)
	}
	m.Release()
	for _, name := range []string{"\x00", "a\x00b", strings.Repeat("long", 1<<18)} {
		tokens := prompt(2, 17)
		s.runIn(name, tokens)
		wantHit(t, s.runIn(name, tokens), 16, 0, 0)
		wantHit(t, s.runIn(name+"\x00", tokens), 0, 0, 0)
	}
	if c, err := hicache.Open(ctx, &hicache.Options{DeviceBytes: 1 << 20, Pools: fullPools(), Eviction: "clock"}); !errors.Is(err, hicache.ErrInvalid) ||
		!strings.Contains(err.Error(), `"clock"`) || !strings.Contains(err.Error(), "lru") {
		t.Errorf("an unknown policy: %v", err)
		if err == nil {
			_ = c.Close()
		}
	}
	if _, err := hicache.ParseWritePolicy("write_never"); !errors.Is(err, hicache.ErrInvalid) || !strings.Contains(err.Error(), "write_back") {
		t.Errorf("an unknown write policy: %v", err)
	}
	if err := s.c.Insert(nil, nil); !errors.Is(err, hicache.ErrStale) {
		t.Errorf("insert of no lease: %v", err)
	}
	s.flush()
	if err := s.c.Verify(); err != nil {
		t.Error(err)
	}
}

// TestHugePrompt: 2 M tokens go through match, load, insert and match again.
func TestHugePrompt(t *testing.T) {
	c, err := hicache.Open(ctx, &hicache.Options{Device: hicache.Null, PageTokens: 64, DeviceBytes: 8 << 30, HostBytes: 8 << 30,
		Pools: []hicache.PoolOptions{{Role: hicache.Full, Layers: []int{0}, LayerBytes: 2048}}})
	if err != nil {
		t.Fatal(err)
	}
	tokens := prompt(1, 2_000_001)
	for _, want := range []int{0, 2_000_000} {
		m := c.Match(tokens)
		lease, err := c.Load(ctx, m, hicache.LoadOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if lease.Prefix() != want {
			t.Errorf("prefix of %d, want %d", lease.Prefix(), want)
		}
		if err := c.Insert(lease, tokens); err != nil {
			t.Fatal(err)
		}
		lease.Release()
		m.Release()
	}
	if err := c.Flush(ctx); err != nil {
		t.Fatal(err)
	}
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
}

// TestFailedLeaseAndLateRelease: what a failed load brought is not published, and releases after Close do nothing.
func TestFailedLeaseAndLateRelease(t *testing.T) {
	s := open(t, hicache.Options{DeviceBytes: 32 * kib, HostBytes: 32 * kib, Pools: fullPools(), Faults: &hicache.FaultOptions{}})
	tokens := prompt(1, 41)
	s.run(tokens)
	s.flush()
	s.evict(hicache.TierDevice)
	if err := s.c.HoldTransfers(false, 1); err != nil {
		t.Fatal(err)
	}
	m := s.c.Match(tokens)
	lease, err := s.c.Load(ctx, m, hicache.LoadOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.c.Insert(lease, tokens); !errors.Is(err, hicache.ErrTransfer) {
		t.Fatalf("insert after a failed load: %v", err)
	}
	lease.Release()
	seq, err := s.c.Begin(ctx, prompt(2, 20), hicache.SequenceOptions{})
	if err != nil {
		t.Fatal(err)
	}
	pin, err := s.c.PinPrefix(hicache.Namespace{}, tokens, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	seq.Abort()
	s.flush()
	if err := s.c.Close(); err != nil {
		t.Fatal(err)
	}
	lease.Release()
	m.Release()
	pin.Release()
	seq.Abort()
	if err := seq.Finish(); err != nil {
		t.Errorf("a second end after close: %v", err)
	}
	if err := s.c.Close(); err != nil {
		t.Error(err)
	}
}
