package proptest

import (
	"context"
	"encoding/binary"
	"errors"
	"flag"
	"math/rand/v2"
	"strconv"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/hicache/hicache/ffi/ids"
	hicache "github.com/hicache/hicache/gohicache"
)

// A simulated inference server over one cache, in one goroutine: requests arrive, are admitted, prefilled in chunks, decoded in batches, forked,
// retracted when the device is full, resumed, aborted, while copies are slow and fail. Every row that the cache gives back is checked against
// what its tokens, namespace and pool say it must be. A seed repeats a run.

var (
	serverSteps = flag.Int("server.steps", 0, "steps of TestServer; 0: the budget of CI")
	serverSeed  = flag.Uint64("server.seed", 1, "seed of TestServer")
)

const (
	serverPageTokens = 4
	serverWindow     = 10
	serverBatch      = 8
	serverChunk      = 12
)

var serverPools = []hicache.PoolOptions{
	{Role: hicache.Full, Layers: []int{0}, KRowBytes: 16},
	{Role: hicache.SWA, Layers: []int{1}, KRowBytes: 16, WindowTokens: serverWindow},
}

var serverStatePools = append(serverPools[:2:2], hicache.PoolOptions{Role: hicache.State, Layers: []int{2}, KRowBytes: 16})

// client is one user's prompt and the answer that the server gives it.
type client struct {
	space    uint32 // namespace
	tokens   []uint32
	prefix   []uint64 // hash of each prefix of tokens; one longer
	target   int      // tokens in the end
	seq      *hicache.Sequence
	computed int  // tokens whose rows are written
	fresh    bool // nothing was computed since it began or was resumed
	stopped  bool // suspended
}

func (q *client) add(token uint32) {
	if len(q.prefix) == 0 {
		q.prefix = append(q.prefix, mix(uint64(q.space)+0x5eed))
	}
	q.tokens = append(q.tokens, token)
	q.prefix = append(q.prefix, mix(q.prefix[len(q.prefix)-1]^uint64(token)*0x9e3779b97f4a7c15))
}

func mix(x uint64) uint64 {
	x ^= x >> 30
	x *= 0xbf58476d1ce4e5b9
	x ^= x >> 27
	x *= 0x94d049bb133111eb
	return x ^ x>>31
}

// row is what position i must hold in a pool: a function of every token up to it.
func (q *client) row(pool, i int) (a, b uint64) {
	h := q.prefix[i+1] ^ mix(uint64(pool)+77)
	return h, mix(h)
}

func (q *client) namespace() (ns hicache.Namespace) {
	if q.space > 0 {
		ns = hicache.Salt(strconv.Itoa(int(q.space)))
	}
	return ns
}

// inference is the server.
type inference struct {
	t       *testing.T
	c       *hicache.Cache
	r       *rand.Rand
	pools   []hicache.PoolInfo
	waiting []*client
	running []*client
	resting []*client // suspended
	digest  uint64    // of everything that happened
	rows    uint64    // checked
	counts  map[string]int
	history [][]uint32 // conversations that may go on
}

func newInference(t *testing.T, o *hicache.Options, seed uint64) *inference {
	t.Helper()
	c, err := hicache.Open(context.Background(), o)
	if err != nil {
		t.Fatal(err)
	}
	return &inference{t: t, c: c, r: rand.New(rand.NewPCG(seed, 15)), pools: c.Pools(), counts: map[string]int{}}
}

func (s *inference) note(what string, n int) {
	s.counts[what]++
	for _, b := range []byte(what) {
		s.digest = mix(s.digest ^ uint64(b))
	}
	s.digest = mix(s.digest ^ uint64(n))
}

// arrive makes a request: a new conversation, or the next turn of one, or a prompt that others have sent before.
func (s *inference) arrive() {
	q := &client{space: uint32(s.r.IntN(2))}
	var prompt []uint32
	if len(s.history) > 0 && s.r.IntN(3) > 0 {
		prompt = s.history[s.r.IntN(len(s.history))]
	}
	for range 1 + s.r.IntN(30) {
		prompt = append(prompt[:len(prompt):len(prompt)], s.r.Uint32N(4))
	}
	if len(prompt) > 90 {
		prompt = prompt[:90]
	}
	for _, token := range prompt {
		q.add(token)
	}
	q.target = len(prompt) + 1 + s.r.IntN(24)
	s.waiting = append(s.waiting, q)
	s.note("arrival", len(prompt))
}

// admit begins the oldest request that waits, if there is room.
func (s *inference) admit() {
	if len(s.waiting) == 0 || len(s.running) >= serverBatch {
		return
	}
	q := s.waiting[0]
	seq, err := s.c.Begin(context.Background(), q.tokens, hicache.SequenceOptions{Namespace: q.namespace()})
	if errors.Is(err, hicache.ErrNoCapacity) || errors.Is(err, hicache.ErrTransfer) {
		s.note("not admitted", len(s.running))
		return
	}
	s.must("begin", err)
	s.waiting = s.waiting[1:]
	q.seq, q.computed, q.fresh = seq, seq.Prefix(), true
	s.running = append(s.running, q)
	s.note("admission", q.computed)
}

func (s *inference) must(what string, err error) {
	if err != nil {
		s.t.Helper()
		s.t.Fatalf("%s: %v", what, err)
	}
}

// step computes: a chunk of each prompt that is not done, a token of each answer.
func (s *inference) step() {
	batch := s.running
	for len(batch) > 0 {
		growth := make([]hicache.Growth, len(batch))
		for i, q := range batch {
			growth[i] = hicache.Growth{Sequence: q.seq}
			if q.computed == len(q.tokens) && q.seq.Len() == q.computed { // room that a step without a forward took is still there
				growth[i].NewTokens = 1
			}
		}
		step, err := s.c.Step(context.Background(), 0, growth, false)
		if err == nil {
			s.compute(step, batch)
			return
		}
		if errors.Is(err, hicache.ErrTransfer) {
			s.broken(batch)
			return
		}
		if !errors.Is(err, hicache.ErrNoCapacity) {
			s.must("step", err)
		}
		s.retract(len(batch) - 1)
		batch = s.running
	}
}

// retract takes the pages of a running request for the others: it rests, or begins again.
func (s *inference) retract(i int) {
	q := s.running[i]
	s.running = append(s.running[:i:i], s.running[i+1:]...)
	if s.r.IntN(2) == 0 && q.computed == len(q.tokens) && q.seq.Suspend(context.Background()) == nil {
		q.stopped = true
		s.resting = append(s.resting, q)
		s.note("suspend", len(q.tokens))
		return
	}
	q.seq.Abort()
	q.seq = nil
	s.waiting = append(s.waiting, q)
	s.note("retract", len(q.tokens))
}

// resume goes on with a request that rests, once nothing waits that could not be admitted.
func (s *inference) resume() {
	if len(s.resting) == 0 || len(s.running) >= serverBatch {
		return
	}
	q := s.resting[0]
	err := q.seq.Resume(context.Background(), hicache.SequenceOptions{})
	if errors.Is(err, hicache.ErrNoCapacity) || errors.Is(err, hicache.ErrTransfer) {
		s.note("not resumed", len(s.running))
		return
	}
	s.must("resume", err)
	s.resting = s.resting[1:]
	q.stopped, q.computed, q.fresh = false, q.seq.Prefix(), true
	s.running = append(s.running, q)
	s.note("resume", q.computed)
}

// compute is the forward of a step.
func (s *inference) compute(step *hicache.Step, batch []*client) {
	defer step.Close()
	var failed error
	for _, err := range step.Layers() {
		if err != nil {
			failed = err
			break
		}
	}
	if failed != nil { // a load-back broke: whoever relied on it begins again
		if !errors.Is(failed, hicache.ErrTransfer) {
			s.must("layer", failed)
		}
		step.Close()
		s.broken(batch)
		return
	}
	tables := s.tables(step, batch)
	for pool, p := range s.pools {
		if p.Role == hicache.State {
			for i := range batch { // all copies before any write
				if source, ok := step.StateSource(i, pool); ok {
					copy(s.c.PageBytes(pool, tables[pool][i][0]), s.c.PageBytes(pool, source))
				}
			}
		}
	}
	for i, q := range batch {
		if q.fresh || s.r.IntN(8) == 0 {
			s.check(q, i, tables, 0)
		} else {
			s.check(q, i, tables, max(0, q.computed-2*serverPageTokens))
		}
		from := q.computed
		if from == len(q.tokens) { // sample
			q.add(s.r.Uint32N(4))
			s.must("append", q.seq.Append(q.tokens[from]))
		}
		q.computed = min(len(q.tokens), from+serverChunk)
		s.write(q, i, tables, from)
		q.fresh = false
	}
	step.Close()
	for _, q := range append([]*client(nil), batch...) {
		s.afterwards(q)
	}
}

// tables are the kernel ids, by pool and sequence.
func (s *inference) tables(step *hicache.Step, batch []*client) [][][]ids.KernelID {
	out := make([][][]ids.KernelID, len(s.pools))
	for pool := range s.pools {
		start, kernel, err := step.Tables(pool)
		s.must("tables", err)
		for i := range batch {
			out[pool] = append(out[pool], kernel[start[i]:start[i+1]])
		}
	}
	return out
}

// check compares what a request has computed, from a position on, with what it must be.
func (s *inference) check(q *client, i int, tables [][][]ids.KernelID, from int) {
	for pool, p := range s.pools {
		low := from
		switch p.Role {
		case hicache.SWA:
			low = max(from, q.computed+1-serverWindow) // what the next token sees
		case hicache.State:
			if q.computed > 0 {
				a, b := q.row(pool, q.computed-1)
				s.same(q, pool, q.computed-1, s.c.PageBytes(pool, tables[pool][i][0]), a, b)
			}
			continue
		}
		for at := low; at < q.computed; at++ {
			id := tables[pool][i][at/serverPageTokens]
			if s.c.IsSink(pool, id) {
				s.t.Fatalf("pool %s has no page at position %d of %d", p.Name, at, q.computed)
			}
			a, b := q.row(pool, at)
			s.same(q, pool, at, s.c.PageBytes(pool, id)[uint64(at%serverPageTokens)*p.TokenStrideBytes:], a, b)
		}
	}
}

func (s *inference) same(q *client, pool, at int, row []byte, a, b uint64) {
	s.rows++
	if binary.LittleEndian.Uint64(row) != a || binary.LittleEndian.Uint64(row[8:]) != b {
		s.t.Fatalf("pool %s, position %d of a request of %d tokens (prefix of %d, hit %+v): wrong bytes %x", s.pools[pool].Name, at, len(q.tokens), q.seq.Prefix(),
			q.seq.Hit(), row[:16])
	}
}

// write fills the rows [from, computed).
func (s *inference) write(q *client, i int, tables [][][]ids.KernelID, from int) {
	for pool, p := range s.pools {
		if p.Role == hicache.State {
			row := s.c.PageBytes(pool, tables[pool][i][0])
			a, b := q.row(pool, q.computed-1)
			binary.LittleEndian.PutUint64(row, a)
			binary.LittleEndian.PutUint64(row[8:], b)
			continue
		}
		for at := from; at < q.computed; at++ {
			id := tables[pool][i][at/serverPageTokens]
			if s.c.IsSink(pool, id) {
				continue
			}
			row := s.c.PageBytes(pool, id)[uint64(at%serverPageTokens)*p.TokenStrideBytes:]
			a, b := q.row(pool, at)
			binary.LittleEndian.PutUint64(row, a)
			binary.LittleEndian.PutUint64(row[8:], b)
		}
	}
}

// afterwards is what a server does with a request between two steps: publish, end, fork, abort.
func (s *inference) afterwards(q *client) {
	switch k := s.r.IntN(100); {
	case len(q.tokens) >= q.target && q.computed == len(q.tokens):
		s.history = append(s.history, q.tokens)
		if len(s.history) > 40 {
			s.history = s.history[1:]
		}
		err := q.seq.Finish()
		s.note("finish", len(q.tokens))
		if err != nil && !errors.Is(err, hicache.ErrTransfer) {
			s.must("finish", err)
		}
		s.drop(q)
	case k == 0:
		q.seq.Abort()
		s.note("abort", len(q.tokens))
		s.drop(q)
	case k < 3 && q.computed == len(q.tokens) && q.seq.Len() == q.computed && len(s.running) < serverBatch:
		child, err := q.seq.Fork()
		if errors.Is(err, hicache.ErrTransfer) {
			return
		}
		s.must("fork", err)
		s.running = append(s.running, &client{space: q.space, tokens: append([]uint32(nil), q.tokens...), prefix: append([]uint64(nil), q.prefix...),
			target: q.target, seq: child, computed: q.computed})
		s.note("fork", len(q.tokens))
	case k < 40 && q.computed >= q.seq.Prefix() && (q.computed < len(q.tokens) || k < 10):
		if err := q.seq.Publish(q.computed); err != nil && !errors.Is(err, hicache.ErrTransfer) {
			s.must("publish", err)
		}
		s.note("publish", q.computed)
	}
}

func (s *inference) drop(q *client) {
	for i, other := range s.running {
		if other == q {
			s.running = append(s.running[:i:i], s.running[i+1:]...)
		}
	}
}

// broken begins the requests of a batch again.
func (s *inference) broken(batch []*client) {
	for _, q := range append([]*client(nil), batch...) {
		if q.seq.Err() == nil {
			continue
		}
		q.seq.Abort()
		q.seq = nil
		s.drop(q)
		s.waiting = append(s.waiting, q)
	}
	s.note("broken", len(batch))
}

// turn is one step of the simulation.
func (s *inference) turn(n int) {
	if s.r.IntN(3) == 0 && len(s.waiting) < 12 {
		s.arrive()
	}
	if s.r.IntN(3) > 0 {
		s.admit()
	} else {
		s.resume()
	}
	s.step()
	switch k := s.r.IntN(2000); {
	case k == 0:
		s.must("clear", s.c.Clear())
		s.note("clear", 0)
	case k < 3:
		s.must("drop", s.c.DropNamespace(hicache.Salt("1")))
		s.note("drop", 0)
	case k < 60:
		gone, err := s.c.Evict(hicache.Tier(1+k%2), k%len(s.pools), 1+k%5)
		s.must("evict", err)
		s.note("evict", gone)
	case k < 200:
		s.must("idle", s.c.Idle())
	}
	if n%500 == 0 {
		s.must("verify", s.c.Verify())
	}
}

// finish ends everything and looks for what is left behind.
func (s *inference) finish() {
	for _, q := range append(append([]*client(nil), s.running...), s.resting...) {
		q.seq.Abort()
	}
	limit, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	s.must("flush", s.c.Flush(limit))
	s.must("verify", s.c.Verify())
	st := s.c.Stats()
	if st.PinsNow != 0 || st.LeasesNow != 0 || st.TransfersInFlightNow != 0 || st.InternalErrors != 0 {
		s.t.Errorf("left behind: %d pins, %d leases, %d transfers; %d internal errors", st.PinsNow, st.LeasesNow, st.TransfersInFlightNow, st.InternalErrors)
	}
	s.must("clear", s.c.Clear())
	s.must("idle", s.c.Idle())
	for pool := range s.pools {
		for _, tier := range []hicache.Tier{hicache.TierDevice, hicache.TierHost} {
			p, err := s.c.PoolStats(tier, pool)
			s.must("pool stats", err)
			if p.Live != 0 || p.Reserved != 0 || p.Pinned != 0 || p.Quarantined != 0 {
				s.t.Errorf("pool %d on the %v after the end: %+v", pool, tier, p)
			}
		}
	}
	s.must("close", s.c.Close())
}

// serve runs a server for so many steps and returns its digest.
func serve(t *testing.T, server int, seed uint64, steps int) (uint64, *inference) {
	t.Helper()
	s := newInference(t, serverOptions(server, seed), seed)
	store, attached := newMemoryStore(1), false
	for n := range steps {
		s.turn(n)
		if servers[server].store && n%1000 == 0 {
			if attached {
				s.must("detach", s.c.DetachStorage(context.Background()))
			} else {
				s.must("attach", s.c.AttachStorage(context.Background(), store))
				s.note("attach", 0)
			}
			attached = !attached
		}
		if t.Failed() {
			break
		}
	}
	s.finish()
	return s.digest, s
}

var servers = []struct {
	name   string
	pools  []hicache.PoolOptions
	policy hicache.WritePolicy
	share  int  // of the steps, in tenths
	store  bool // a third tier that fails, comes and goes; its goroutine makes runs differ
}{
	{"windows, write through", serverPools, hicache.WriteThrough, 3, false}, {"windows, write back", serverPools, hicache.WriteBack, 3, false},
	{"states, write through", serverStatePools, hicache.WriteThrough, 3, false}, {"three tiers", serverStatePools, hicache.WriteThrough, 1, true},
}

func serverOptions(i int, seed uint64) *hicache.Options {
	return &hicache.Options{PageTokens: serverPageTokens, Pools: servers[i].pools, DeviceBytes: 8 << 10, HostBytes: 7 << 10, WritePolicy: servers[i].policy,
		Faults: &hicache.FaultOptions{Seed: seed, FailPPM: 80_000, DelayMax: time.Millisecond}}
}

// TestServer simulates a server for 10⁵ steps in CI, or -server.steps of them.
func TestServer(t *testing.T) {
	needLibrary(t)
	defer goleak.VerifyNone(t)
	steps := *serverSteps
	if steps == 0 {
		steps = 100_000
		if testing.Short() {
			steps = 10_000
		}
	}
	counts := map[string]int{}
	for i := range servers {
		t.Run(servers[i].name, func(t *testing.T) {
			n := steps * servers[i].share / 10
			t.Logf("repeat with: go test ./proptest -run '^TestServer$' -server.seed=%d -server.steps=%d", *serverSeed, steps)
			start := time.Now()
			_, s := serve(t, i, *serverSeed, n)
			t.Logf("%d steps in %v, %d rows checked, %v", n, time.Since(start).Round(time.Millisecond), s.rows, s.counts)
			for what, n := range s.counts {
				counts[what] += n
			}
		})
	}
	for _, what := range []string{"finish", "abort", "fork", "retract", "suspend", "resume", "not admitted", "broken", "clear", "drop", "publish", "attach"} {
		if counts[what] == 0 && !t.Failed() {
			t.Errorf("no %s in the whole run", what)
		}
	}
}

// TestServerRepeats: a seed gives the same run again, another seed another one.
func TestServerRepeats(t *testing.T) {
	needLibrary(t)
	for i := range servers {
		if servers[i].store {
			continue
		}
		first, _ := serve(t, i, 5, 1500)
		again, _ := serve(t, i, 5, 1500)
		other, _ := serve(t, i, 6, 1500)
		if first != again || first == other {
			t.Errorf("%s: digests %x, %x and %x of another seed", servers[i].name, first, again, other)
		}
	}
}
