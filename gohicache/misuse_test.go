package hicache_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/hicache/hicache/ffi/ids"
	hicache "github.com/hicache/hicache/gohicache"
	"github.com/hicache/hicache/gohicache/storage"
)

func wantIs(t *testing.T, what string, err, want error) {
	t.Helper()
	var e *hicache.Error
	if !errors.Is(err, want) || !errors.As(err, &e) {
		t.Errorf("%s: %v, want %v", what, err, want)
	}
}

// TestWhatAnotherCacheGaveOut: a server with a cache a rank that mixes them up is told so; the numbers of one are pages of others in the other.
func TestWhatAnotherCacheGaveOut(t *testing.T) {
	o := hicache.Options{DeviceBytes: 16 * kib, HostBytes: 16 * kib, Pools: windowPools()}
	mine, other := open(t, o), open(t, o)
	tokens := prompt(1, 21)
	other.run(tokens)

	m := other.c.Match(tokens)
	defer m.Release()
	_, err := mine.c.Load(ctx, m, hicache.LoadOptions{})
	wantIs(t, "load", err, hicache.ErrInvalid)
	_, err = mine.c.Admit(m, hicache.AdmitOptions{})
	wantIs(t, "admit", err, hicache.ErrInvalid)
	l, err := other.c.Load(ctx, m, hicache.LoadOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Release()
	wantIs(t, "insert", mine.c.Insert(l, tokens), hicache.ErrInvalid)

	s, err := other.c.Begin(ctx, tokens, hicache.SequenceOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Abort()
	wantBatchRefused(t, mine.c, []hicache.Growth{{Sequence: s, NewTokens: 9}}, hicache.ErrInvalid)
	if s.Len() != len(tokens) {
		t.Errorf("the sequence has %d tokens", s.Len())
	}
	for _, c := range []*hicache.Cache{mine.c, other.c} {
		if err := c.Verify(); err != nil {
			t.Error(err)
		}
	}
}

// wantBatchRefused tries the batch in all calls that take one.
func wantBatchRefused(t *testing.T, c *hicache.Cache, batch []hicache.Growth, want error) {
	t.Helper()
	wantIs(t, "extend", c.Extend(ctx, batch, false), want)
	_, err := c.Step(ctx, 0, batch, false)
	wantIs(t, "step", err, want)
	b := c.NewBatch(0)
	defer b.Close()
	wantIs(t, "batch step", b.Step(ctx, batch, nil, false), want)
}

// TestBadBatches: what no batch may have is refused before anything changes.
func TestBadBatches(t *testing.T) {
	s := open(t, hicache.Options{DeviceBytes: 16 * kib, HostBytes: 16 * kib, Pools: windowPools()})
	q, err := s.c.Begin(ctx, prompt(1, 7), hicache.SequenceOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer q.Abort()
	for _, g := range [][]hicache.Growth{
		{{Sequence: q, NewTokens: 1}, {}},
		{{Sequence: &hicache.Sequence{}, NewTokens: 1}},
		{{Sequence: q, NewTokens: 1}, {Sequence: q, NewTokens: 1}},
		{{Sequence: q}, {Sequence: q}},
		{{Sequence: q, NewTokens: -1}},
		{{Sequence: q, NewTokens: math.MaxInt}},
		{{Sequence: q, NewTokens: math.MinInt}},
		{{Sequence: q, NewTokens: 1 << 31}},
	} {
		wantBatchRefused(t, s.c, g, hicache.ErrInvalid)
	}
	if err := q.Suspend(ctx); err != nil {
		t.Fatal(err)
	}
	wantBatchRefused(t, s.c, []hicache.Growth{{Sequence: q, NewTokens: 1}}, hicache.ErrStale)
	if err := q.Resume(ctx, hicache.SequenceOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := s.c.Extend(ctx, []hicache.Growth{{Sequence: q, NewTokens: 1}}, false); err != nil || q.Len() != 8 {
		t.Errorf("afterwards: %v, %d tokens", err, q.Len())
	}
}

// TestLayersOfALeaseThatIsOver: its pages are others' by now, so no layer of it is ready.
func TestLayersOfALeaseThatIsOver(t *testing.T) {
	s := open(t, hicache.Options{DeviceBytes: 16 * kib, Pools: windowPools()})
	m := s.c.Match(prompt(1, 7))
	defer m.Release()
	l, err := s.c.Load(ctx, m, hicache.LoadOptions{TTL: time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	for until := time.Now().Add(10 * time.Second); l.KernelIDs(hicache.Full) != nil && time.Now().Before(until); {
		time.Sleep(time.Millisecond)
	}
	layers := 0
	for _, err := range l.Layers() {
		layers++
		wantIs(t, "layer", err, hicache.ErrStale)
	}
	if layers != 1 {
		t.Errorf("%d layers", layers)
	}
	var zero hicache.Lease
	zero.Release()
	wantIs(t, "insert of a zero lease", s.c.Insert(&zero, nil), hicache.ErrStale)
}

// TestAdmitOfTooMuch: prices do not wrap around.
func TestAdmitOfTooMuch(t *testing.T) {
	s := open(t, hicache.Options{DeviceBytes: 16 * kib, Pools: windowPools()})
	m := s.c.Match(prompt(1, 7))
	defer m.Release()
	for _, o := range []hicache.AdmitOptions{{Extend: math.MaxInt}, {MaxNew: math.MaxInt}, {Extend: 1 << 40}, {MaxNew: 1 << 40}, {MaxNew: 1<<34 - 4}} {
		_, err := s.c.Admit(m, o)
		wantIs(t, "admit", err, hicache.ErrInvalid)
	}
	_, err := s.c.Admit(m, hicache.AdmitOptions{Extend: 1 << 30, MaxNew: 1 << 30})
	wantIs(t, "admit", err, hicache.ErrInfeasible)
	_, err = s.c.Admit(m, hicache.AdmitOptions{Extend: 200}) // One that the same request's Load refuses for ever, too.
	wantIs(t, "admit", err, hicache.ErrInfeasible)
	one, err := s.c.Admit(m, hicache.AdmitOptions{Extend: 60})
	if err != nil {
		t.Fatal(err)
	}
	_, err = s.c.Admit(m, hicache.AdmitOptions{Extend: 60}) // Fits alone, and will when the first has gone.
	wantIs(t, "admit", err, hicache.ErrNoCapacity)
	one.Release()
}

// TestAdmitBesideItsPrefix: a request whose own prefix takes the room that it lacks waits for nobody.
func TestAdmitBesideItsPrefix(t *testing.T) {
	s := open(t, hicache.Options{DeviceBytes: 16 * kib, Pools: fullPools()}) // 31 pages
	tokens := prompt(1, 81)
	s.run(tokens)
	m := s.c.Match(tokens) // 20 pages
	defer m.Release()
	_, err := s.c.Admit(m, hicache.AdmitOptions{Extend: 40}) // 10 pages and 2 of headroom
	wantIs(t, "admit", err, hicache.ErrInfeasible)
	one, err := s.c.Admit(m, hicache.AdmitOptions{Extend: 36})
	if err != nil {
		t.Fatal(err)
	}
	one.Release()
}

// TestNumbersOfTokensThatCannotBe: what is published, named or asked for lies within what there are pages for, and nothing is published of a lease that is
// over; a refused call changes nothing.
func TestNumbersOfTokensThatCannotBe(t *testing.T) {
	s := open(t, hicache.Options{DeviceBytes: 32 * kib, Pools: windowPools()})
	tokens := prompt(1, 60)
	s.run(tokens[:20])
	m := s.c.Match(tokens[:30])
	defer m.Release()
	if m.Tokens() != 20 {
		t.Fatalf("%d tokens are found", m.Tokens())
	}
	for _, n := range []int{-1, 1, 19, 1<<30 + 1} {
		_, err := s.c.Load(ctx, m, hicache.LoadOptions{Tokens: n})
		wantIs(t, fmt.Sprintf("load for %d tokens", n), err, hicache.ErrInvalid)
	}
	lease, err := s.c.Load(ctx, m, hicache.LoadOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range []int{0, 19, 31, 60} {
		wantIs(t, fmt.Sprintf("insert of %d tokens", n), s.c.Insert(lease, tokens[:n]), hicache.ErrInvalid)
	}
	s.write("", tokens[:30], lease.PoolKernelIDs, 5, 7)
	lease.Release()
	wantIs(t, "insert into a lease that is over", s.c.Insert(lease, tokens[:30]), hicache.ErrStale)

	seq, err := s.c.Begin(ctx, tokens[:30], hicache.SequenceOptions{})
	if err != nil {
		t.Fatal(err)
	}
	wantIs(t, "append without room", seq.Append(1), hicache.ErrInvalid)
	for _, n := range []int{-1, 19, 31} {
		wantIs(t, fmt.Sprintf("publish of %d tokens", n), seq.Publish(n), hicache.ErrInvalid)
	}
	seq.Abort()
	found := s.c.Match(tokens)
	defer found.Release()
	if found.Tokens() != 20 {
		t.Errorf("%d tokens are found, want the 20 that were there", found.Tokens())
	}
}

// TestPoolsAndTiersThatThereAreNot: numbers wider than the engine's are not cut down to ones that there are.
func TestPoolsAndTiersThatThereAreNot(t *testing.T) {
	s := open(t, hicache.Options{DeviceBytes: 16 * kib, HostBytes: 16 * kib, Pools: windowPools()})
	m := s.c.Match(prompt(1, 7))
	defer m.Release()
	l, err := s.c.Load(ctx, m, hicache.LoadOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Release()
	for _, pool := range []int{-1, 3, math.MaxInt, math.MinInt, 1 << 32} {
		_, err := s.c.PoolStats(hicache.TierDevice, pool)
		wantIs(t, "stats", err, hicache.ErrInvalid)
		_, err = s.c.Map(hicache.TierDevice, pool)
		wantIs(t, "map", err, hicache.ErrInvalid)
		_, err = s.c.HostPlaces(pool, []ids.HostPage{1})
		wantIs(t, "host places", err, hicache.ErrInvalid)
		if _, ok := l.StateSource(pool); ok || l.PoolKernelIDs(pool) != nil || l.HostPages(pool) != nil {
			t.Errorf("the lease has pages of pool %d", pool)
		}
		if s.c.PageBytes(pool, 1) != nil || s.c.IsSink(pool, 0) || s.c.PhysicalPage(pool, 1) != ids.NoPhysicalPage {
			t.Errorf("the cache has pages of pool %d", pool)
		}
	}
	for _, tier := range []hicache.Tier{0, hicache.TierStorage, 9} {
		_, err := s.c.PoolStats(tier, 0)
		wantIs(t, "stats", err, hicache.ErrInvalid)
		_, err = s.c.Map(tier, 0)
		wantIs(t, "map", err, hicache.ErrInvalid)
		_, err = s.c.Evict(tier, 0, 1)
		wantIs(t, "evict", err, hicache.ErrInvalid)
	}
}

// neverReady is a store that says nothing for as long as it is let.
type neverReady struct{ storage.Store }

func (neverReady) Ready(ctx context.Context) error {
	<-ctx.Done()
	return ctx.Err()
}

// TestOpenIsBoundedByItsContext: also while the store makes up its mind.
func TestOpenIsBoundedByItsContext(t *testing.T) {
	bounded, cancel := context.WithTimeout(ctx, 20*time.Millisecond)
	defer cancel()
	o := hicache.Options{DeviceBytes: 16 * kib, HostBytes: 16 * kib, PageTokens: pageTokens, Pools: fullPools(), Storage: neverReady{newMemory()}}
	c, err := hicache.Open(bounded, &o)
	if err == nil {
		_ = c.Close()
	}
	wantIs(t, "open", err, context.DeadlineExceeded)
}

// TestCallsWithoutAContext are refused before anything changes; of a batch the step before is over, as after any error.
func TestCallsWithoutAContext(t *testing.T) {
	var none context.Context
	o := hicache.Options{DeviceBytes: 16 * kib, HostBytes: 16 * kib, PageTokens: pageTokens, Pools: windowPools()}
	_, err := hicache.Open(none, &o)
	wantIs(t, "open", err, hicache.ErrInvalid)
	s := open(t, o)
	m := s.c.Match(prompt(1, 7))
	defer m.Release()
	_, err = s.c.Load(none, m, hicache.LoadOptions{})
	wantIs(t, "load", err, hicache.ErrInvalid)
	_, err = s.c.Begin(none, prompt(1, 7), hicache.SequenceOptions{})
	wantIs(t, "begin", err, hicache.ErrInvalid)
	_, err = s.c.BeginWide(none, nil, hicache.SequenceOptions{})
	wantIs(t, "begin", err, hicache.ErrInvalid)
	wantIs(t, "flush", s.c.Flush(none), hicache.ErrInvalid)
	wantIs(t, "attach", s.c.AttachStorage(none, newMemory()), hicache.ErrInvalid)
	if err := s.c.AttachStorage(ctx, newMemory()); err != nil {
		t.Fatal(err)
	}
	wantIs(t, "detach", s.c.DetachStorage(none), hicache.ErrInvalid)
	l, err := s.c.Load(ctx, m, hicache.LoadOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Release()
	wantIs(t, "wait", l.Wait(none), hicache.ErrInvalid)
	q, err := s.c.Begin(ctx, prompt(2, 7), hicache.SequenceOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer q.Abort()
	batch := []hicache.Growth{{Sequence: q, NewTokens: 1}}
	wantIs(t, "extend", s.c.Extend(none, batch, true), hicache.ErrInvalid)
	_, err = s.c.Step(none, 0, batch, true)
	wantIs(t, "step", err, hicache.ErrInvalid)
	wantIs(t, "suspend", q.Suspend(none), hicache.ErrInvalid)
	b := s.c.NewBatch(0)
	if err := b.Step(ctx, []hicache.Growth{{Sequence: q}}, nil, false); err != nil {
		t.Fatal(err)
	}
	wantIs(t, "batch step", b.Step(none, batch, nil, true), hicache.ErrInvalid)
	if n := s.c.Stats().LeasesNow; n != 2 || q.Len() != 7 {
		t.Errorf("%d held, %d tokens", n, q.Len())
	}
	if err := q.Suspend(ctx); err != nil {
		t.Fatal(err)
	}
	wantIs(t, "resume", q.Resume(none, hicache.SequenceOptions{}), hicache.ErrInvalid)
}

// TestCloseBesideSteps: Close may say what is held while others compute with it.
func TestCloseBesideSteps(t *testing.T) {
	s := open(t, hicache.Options{DeviceBytes: 64 * kib, HostBytes: 64 * kib, Pools: windowPools()})
	begun, ended := make(chan struct{}, 2), make(chan error, 2)
	for i := range 2 {
		go func() {
			q, err := s.c.Begin(ctx, prompt(i, 7), hicache.SequenceOptions{})
			if err != nil {
				ended <- err
				return
			}
			defer q.Abort()
			b := s.c.NewBatch(0)
			defer b.Close()
			for n := 0; ; n++ {
				if n == 3 {
					begun <- struct{}{}
				}
				more := n % 2
				if n > 64 { // there is room for all of it
					more = 0
				}
				if err = b.Step(ctx, []hicache.Growth{{Sequence: q, NewTokens: more}}, nil, false); err != nil {
					break
				}
				if err = q.Append(prompt(i, more)...); err != nil {
					break
				}
				if n%8 == 7 {
					if err = q.Publish(0); err != nil {
						break
					}
				}
			}
			ended <- err
		}()
	}
	<-begun
	<-begun
	if err := s.c.Close(); err != nil { // else they were quick to end
		wantIs(t, "close", err, hicache.ErrBusy)
	}
	for range 2 {
		wantIs(t, "a step afterwards", <-ended, hicache.ErrClosed)
	}
	for until := time.Now().Add(10 * time.Second); s.c.Close() != nil && time.Now().Before(until); {
		time.Sleep(time.Millisecond) // the sequences end behind their errors
	}
	if err := s.c.Close(); err != nil {
		t.Error(err)
	}
}

// TestVerifyBesideClose: what Close takes away is not reported as a fault.
func TestVerifyBesideClose(t *testing.T) {
	for range 20 {
		s := open(t, hicache.Options{DeviceBytes: 16 * kib, HostBytes: 16 * kib, Pools: windowPools()})
		begun, ended := make(chan struct{}), make(chan error, 1)
		go func() {
			err := s.c.Verify()
			close(begun)
			for err == nil {
				err = s.c.Verify()
			}
			ended <- err
		}()
		<-begun
		if err := s.c.Close(); err != nil {
			t.Fatal(err)
		}
		wantIs(t, "verify", <-ended, hicache.ErrClosed)
	}
}

// TestLayersOfAStepThatIsOver: its pages may be others' by now, so no layer of it is ready.
func TestLayersOfAStepThatIsOver(t *testing.T) {
	s := open(t, hicache.Options{DeviceBytes: 16 * kib, Pools: windowPools()})
	q, err := s.c.Begin(ctx, prompt(1, 7), hicache.SequenceOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer q.Abort()
	batch := []hicache.Growth{{Sequence: q}}
	step, err := s.c.Step(ctx, 0, batch, false)
	if err != nil {
		t.Fatal(err)
	}
	handedOn := s.c.NewBatch(0)
	if err := handedOn.Step(ctx, batch, nil, false); err != nil {
		t.Fatal(err)
	}
	for _, x := range []openStep{step, handedOn} {
		for _, err := range x.Layers() {
			if err != nil {
				t.Error(err)
			}
		}
		x.Close()
		layers := 0
		for _, err := range x.Layers() {
			layers++
			wantIs(t, "layer", err, hicache.ErrStale)
		}
		if layers != 1 {
			t.Errorf("%d layers", layers)
		}
	}
}

// TestEndsOfNothing: what a failed call gave out can be ended like what it would have given out.
func TestEndsOfNothing(*testing.T) {
	(*hicache.Match)(nil).Release()
	(*hicache.Lease)(nil).Release()
	(*hicache.Admission)(nil).Release()
	(*hicache.Sequence)(nil).Abort()
	(*hicache.Step)(nil).Close()
	new(hicache.Sequence).Abort()
	new(hicache.Step).Close()
}
