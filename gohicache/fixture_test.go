package hicache_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/hicache/hicache/ffi/ids"
	hicache "github.com/hicache/hicache/gohicache"
)

var ctx = context.Background()

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// Two geometries that the tests share: a lone FULL pool, and FULL with two sliding windows of different size. Pages hold 4 tokens.
const pageTokens = 4

func fullPools() []hicache.PoolOptions {
	return []hicache.PoolOptions{{Role: hicache.Full, Layers: []int{0, 1}, LayerBytes: 64}}
}

func windowPools() []hicache.PoolOptions {
	return []hicache.PoolOptions{
		{Role: hicache.Full, Layers: []int{2, 5}, LayerBytes: 64},
		{Name: "swa", Role: hicache.SWA, Layers: []int{0, 3}, LayerBytes: 32, WindowTokens: 12},
		{Name: "wide", Role: hicache.SWA, Layers: []int{1, 4}, KRowBytes: 16, WindowTokens: 18},
	}
}

// server is a simulated inference server over one cache: it writes KV that is a function of everything that decides about it, and checks
// every page that the cache gives back.
type server struct {
	t testing.TB
	c *hicache.Cache
}

// open opens a cache for a test and closes it, checked, at its end. devicePages is the size of the arena in FULL pages.
func open(t testing.TB, o hicache.Options) *server {
	t.Helper()
	if o.PageTokens == 0 {
		o.PageTokens = pageTokens
	}
	if o.PrefetchTimeout == 0 {
		o.PrefetchTimeout = 30 * time.Second // a busy machine is no reason to miss
	}
	if o.Logger == nil && testing.Verbose() {
		o.Logger = slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
	}
	c, err := hicache.Open(ctx, &o)
	if err != nil {
		t.Fatalf("open: %v", err)
	}
	s := &server{t: t, c: c}
	t.Cleanup(func() {
		if t.Failed() {
			_ = c.Close()
			return
		}
		probe := c.Match(nil)
		open := probe.Err() == nil
		probe.Release()
		if open { // a test that closes it has checked
			s.quiet()
		}
		if err := c.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return s
}

// pinned tells whether anything holds pages.
func (s *server) pinned() bool {
	pages := uint64(0)
	for p := range s.c.Pools() {
		for _, tier := range []hicache.Tier{hicache.TierDevice, hicache.TierHost} {
			st, _ := s.c.PoolStats(tier, p) // an error is quiet's to report
			pages += uint64(st.Pinned)
		}
	}
	return s.c.Stats().PinsNow != 0 || pages != 0
}

// quiet waits for everything in flight and checks all invariants, with nobody holding anything: what is live is in the tree.
func (s *server) quiet() {
	s.t.Helper()
	flush, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	if err := s.c.Flush(flush); err != nil {
		s.t.Errorf("flush: %v", err)
	}
	for flush.Err() == nil && s.pinned() { // by fetches that nobody waits for any more, and the store has just let go of
		time.Sleep(time.Millisecond)
	}
	if err := s.c.Verify(); err != nil {
		s.t.Errorf("verify: %v", err)
	}
	if st := s.c.Stats(); st.PinsNow != 0 || st.LeasesNow != 0 || st.TransfersInFlightNow != 0 || st.InternalErrors != 0 {
		s.t.Errorf("left behind: %d pins, %d leases, %d transfers; %d internal errors", st.PinsNow, st.LeasesNow, st.TransfersInFlightNow, st.InternalErrors)
	}
	for _, tier := range []hicache.Tier{hicache.TierDevice, hicache.TierHost} {
		for p := range s.c.Pools() {
			st, err := s.c.PoolStats(tier, p)
			if err != nil {
				s.t.Errorf("pool %d on the %v: %v", p, tier, err)
			}
			if st.Evictable != st.Cached || st.Pinned != 0 || st.Reserved != 0 || st.Quarantined != 0 {
				s.t.Errorf("pool %d on the %v: of %d pages %d may go; %d are pinned, %d reserved, %d in quarantine", p, tier, st.Cached, st.Evictable, st.Pinned, st.Reserved, st.Quarantined)
			}
		}
	}
}

// prompt makes n tokens from a seed; prompts of one seed are prefixes of each other.
func prompt(seed, n int) []uint32 {
	r := rand.New(rand.NewPCG(uint64(seed), 99))
	out := make([]uint32, n)
	for i := range out {
		out[i] = r.Uint32N(1 << 20)
	}
	return out
}

// envelope is what page i of tokens must hold in a pool: every row is a function of namespace, all tokens up to the page's end, pool, layer, K or V
// and token.
func (s *server) envelope(ns string, tokens []uint32, i, pool int) []byte {
	p := &s.c.Pools()[pool]
	h := sha256.New()
	h.Write([]byte(ns))
	for _, t := range tokens[:(i+1)*p.PageTokens] {
		_ = binary.Write(h, binary.LittleEndian, t)
	}
	prefix := h.Sum(nil)
	page := make([]byte, p.PageBytes)
	row := func(at, size uint64, layer, kv, token int) {
		sum := sha256.Sum256(fmt.Appendf(prefix[:len(prefix):len(prefix)], "%d %d %d %d", pool, layer, kv, token))
		for b := uint64(0); b < size; b += 16 {
			copy(page[at+b:at+size], sum[:16])
		}
	}
	for l, layer := range p.Layers {
		for t := range p.PageTokens {
			at := uint64(l)*p.LayerStrideBytes + uint64(t)*p.TokenStrideBytes
			row(at, p.KRowBytes, layer, 0, t)
			if p.VRowBytes > 0 {
				row(uint64(l)*p.LayerStrideBytes+p.VOffsetBytes+uint64(t)*p.VTokenStrideBytes, p.VRowBytes, layer, 1, t)
			}
		}
	}
	return page
}

// check compares the pages [from, to) of a request with what they must hold; window pools only where they have a page.
func (s *server) check(what, ns string, tokens []uint32, table func(pool int) []ids.KernelID, from, to int) {
	s.t.Helper()
	for p, info := range s.c.Pools() {
		kernel := table(p)
		low := from
		if info.Role == hicache.SWA { // a prefix promises its last window only
			low = max(from, to-(info.WindowTokens+info.PageTokens-1)/info.PageTokens)
		}
		for i := low; i < to; i++ {
			if s.c.IsSink(p, kernel[i]) {
				s.t.Fatalf("%s: pool %s has no page at position %d of [%d, %d)", what, info.Name, i, from, to)
			}
			if got, want := s.c.PageBytes(p, kernel[i]), s.envelope(ns, tokens, i, p); !bytes.Equal(got, want) {
				s.t.Fatalf("%s: pool %s, position %d, kernel id %d: %x, want %x", what, info.Name, i, kernel[i], got[:16], want[:16])
			}
		}
	}
}

// write fills the pages [from, to) as a forward would.
func (s *server) write(ns string, tokens []uint32, table func(pool int) []ids.KernelID, from, to int) {
	for p := range s.c.Pools() {
		kernel := table(p)
		for i := from; i < to; i++ {
			if !s.c.IsSink(p, kernel[i]) {
				copy(s.c.PageBytes(p, kernel[i]), s.envelope(ns, tokens, i, p))
			}
		}
	}
}

// compute loads a match, checks what came, computes the rest and inserts it. The lease is the caller's.
func (s *server) compute(m *hicache.Match, ns string, tokens []uint32, o hicache.LoadOptions) (*hicache.Lease, error) {
	s.t.Helper()
	lease, err := s.c.Load(ctx, m, o)
	if err != nil {
		return nil, err
	}
	for layer, err := range lease.Layers() {
		if err != nil {
			lease.Release()
			return nil, fmt.Errorf("layer %d: %w", layer, err)
		}
	}
	prefix := lease.Prefix() / pageTokens
	s.check("prefix", ns, tokens, lease.PoolKernelIDs, 0, prefix)
	s.write(ns, tokens, lease.PoolKernelIDs, prefix, len(tokens)/pageTokens)
	if err := s.c.Insert(lease, tokens); err != nil {
		lease.Release()
		return nil, err
	}
	return lease, nil
}

// run serves one request whole and returns where its prefix came from.
func (s *server) run(tokens []uint32) hicache.HitTokens { return s.runIn("", tokens) }

func (s *server) runIn(ns string, tokens []uint32) hicache.HitTokens {
	s.t.Helper()
	var space hicache.Namespace
	if ns != "" {
		space = hicache.Salt(ns)
	}
	m := s.c.MatchIn(space, tokens)
	defer m.Release()
	lease, err := s.compute(m, ns, tokens, hicache.LoadOptions{Wait: true})
	if err != nil {
		s.t.Fatalf("request of %d tokens: %v", len(tokens), err)
	}
	defer lease.Release()
	return lease.Hit()
}

// evict empties the device as far as it can.
func (s *server) evict(tier hicache.Tier) {
	s.t.Helper()
	for p := range s.c.Pools() {
		if _, err := s.c.Evict(tier, p, 1<<20); err != nil {
			s.t.Fatal(err)
		}
	}
}

func (s *server) flush() {
	s.t.Helper()
	if err := s.c.Flush(ctx); err != nil {
		s.t.Fatal(err)
	}
}

func wantHit(t testing.TB, got hicache.HitTokens, device, host, storage int) {
	t.Helper()
	if want := (hicache.HitTokens{Device: device, Host: host, Storage: storage}); got != want {
		t.Fatalf("hit %+v, want %+v", got, want)
	}
}

// folder is an empty folder for a store, in memory where there is such: the tests make many small files.
func folder(t testing.TB) string {
	t.Helper()
	const shared = "/dev/shm"
	if info, err := os.Stat(shared); err != nil || !info.IsDir() {
		return t.TempDir()
	}
	dir, err := os.MkdirTemp(shared, "hicache-test-")
	if err != nil {
		return t.TempDir()
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return dir
}
