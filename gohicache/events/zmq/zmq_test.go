package zmq

import (
	"context"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"testing"
	"time"

	"github.com/go-zeromq/zmq4"
	"github.com/go-zeromq/zmq4/security/null"
	"go.uber.org/goleak"

	hicache "github.com/hicache/hicache/gohicache"
	"github.com/hicache/hicache/gohicache/events"
)

var ctx = context.Background()

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// load drives one cache with random requests of a few conversations and tenants.
type load struct {
	t testing.TB
	c *hicache.Cache
	r *rand.Rand
}

func open(t testing.TB, seed uint64) *load {
	t.Helper()
	c, err := hicache.Open(ctx, &hicache.Options{Device: hicache.Null, DeviceBytes: 48 << 10, HostBytes: 64 << 10, PageTokens: 4, Events: true,
		Pools:  []hicache.PoolOptions{{Role: hicache.Full, Layers: []int{0}, LayerBytes: 64}, {Role: hicache.SWA, Layers: []int{1}, LayerBytes: 64, WindowTokens: 12}},
		Faults: &hicache.FaultOptions{Seed: seed, FailPPM: 10_000}})
	if err != nil {
		t.Fatal(err)
	}
	l := &load{t, c, rand.New(rand.NewPCG(seed, 8))}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	return l
}

func tokens(seed, n int) []uint32 {
	out := make([]uint32, n)
	for i := range out {
		out[i] = uint32(seed*131071+i*(seed+3)) % 128000
	}
	return out
}

// op is one random operation.
func (l *load) op() {
	switch k := l.r.IntN(1000); {
	case k == 0:
		_ = l.c.Clear()
	case k < 3:
		_ = l.c.DropNamespace(hicache.Salt("b"))
	case k < 20:
		_, _ = l.c.Evict(hicache.Tier(1+k%2), l.r.IntN(2), 1+l.r.IntN(5))
	default:
		var ns hicache.Namespace
		if k%3 == 0 {
			ns = hicache.Salt("b")
		}
		prompt := tokens(l.r.IntN(40), 5+l.r.IntN(90))
		m := l.c.MatchIn(ns, prompt)
		defer m.Release()
		lease, err := l.c.Load(ctx, m, hicache.LoadOptions{})
		if err != nil {
			if !errors.Is(err, hicache.ErrNoCapacity) && !errors.Is(err, hicache.ErrTransfer) {
				l.t.Fatal(err)
			}
			return
		}
		if err := l.c.Insert(lease, prompt); err != nil && !errors.Is(err, hicache.ErrTransfer) {
			l.t.Fatal(err)
		}
		lease.Release()
	}
}

func (l *load) flush() {
	l.t.Helper()
	if err := l.c.Flush(ctx); err != nil {
		l.t.Fatal(err)
	}
}

var forms = []struct {
	name  string
	form  Form
	plain bool
	all   bool
	ops   int
}{{"sglang", SGLang, false, true, 100_000}, {"sglang plain", SGLang, true, false, 4000}, {"vllm", VLLM, false, true, 4000},
	{"vllm plain", VLLM, true, true, 4000}, {"vllm maps", VLLMMaps, false, true, 4000}, {"vllm maps plain", VLLMMaps, true, false, 4000}}

// TestConsumerRebuildsTheTiers: a consumer of each published form has exactly what the cache has, in every pool that is published, also one that
// lost changes on the way.
func TestConsumerRebuildsTheTiers(t *testing.T) {
	for _, f := range forms {
		t.Run(f.name, func(t *testing.T) {
			ops := f.ops
			if testing.Short() {
				ops = min(ops, 2000)
			}
			l := open(t, 1)
			s, err := l.c.Events(hicache.EventOptions{QueuePages: 4000})
			if err != nil {
				t.Fatal(err)
			}
			e := Encoder{Form: f.form, Plain: f.plain, AllPools: f.all, Rank: -1, Media: [3]string{"GPU", "CPU", ""}, PagesMax: 64}
			c := newConsumer(f.form, f.plain)
			for i := range ops {
				l.op()
				if i%10 == 0 && i%10_000 < 9800 { // then it sleeps for a while
					c.feed(t, &e, s)
				}
				if i%2000 == 1999 {
					l.flush()
					c.feed(t, &e, s)
					c.compare(t, l.c, f.all)
				}
			}
			if c.orphan > 0 {
				t.Errorf("%d blocks were stored below a parent that nobody had heard of", c.orphan)
			}
			st := l.c.Stats()
			if st.Evicted.Device == 0 || st.Evicted.Host == 0 || st.LoadBacks == 0 || st.TransfersFailed == 0 || f.ops > 50_000 && !testing.Short() && st.EventGaps == 0 {
				t.Errorf("the load shows too little: %+v", st)
			}
			if !f.plain && (c.why["demoted"] == 0 || c.why["capacity"] == 0 || c.why["cleared"] == 0) {
				t.Errorf("reasons: %v", c.why)
			}
		})
	}
}

// TestBytes: the published forms to the byte, worked out by hand from the msgpack specification.
func TestBytes(t *testing.T) {
	batch := events.Batch{Epoch: 7, First: 1, Last: 2, Time: time.Unix(1, 500_000_000), Events: []events.Event{
		{Kind: events.Stored, Tier: events.Device, Hashes: []int64{5, -6}, Parent: 300, HasParent: true, Tokens: []uint32{1, 2, 3, 70000}, PageTokens: 2,
			Salt: events.Label{Set: true, Text: "s"}},
		{Kind: events.Removed, Tier: events.Host, Reason: events.Demoted, Hashes: []int64{5}},
		{Kind: events.Cleared},
	}}
	str := func(s string) string { return hex.EncodeToString(append([]byte{0xa0 + byte(len(s))}, s...)) }
	const ts = "cb3ff8000000000000"
	stored := str("BlockStored") + "9205fa" + "cd012c" + "94010203ce00011170" + "02" + "c0" + str("GPU")
	removed, cleared := str("BlockRemoved")+"9105"+str("CPU"), "91"+"b0"+hex.EncodeToString([]byte("AllBlocksCleared"))
	for _, c := range []struct {
		name string
		e    Encoder
		want string
	}{
		{"sglang plain", Encoder{Form: SGLang, Plain: true, Rank: -1}, "92" + ts + "93" + "9a" + stored + str("s") + "c0c0" + "93" + removed + cleared},
		{"sglang", Encoder{Form: SGLang, Rank: 3}, "95" + ts + "93" + "9a" + stored + str("s") + "c0c0" + "95" + removed + "c0" + str("demoted") + cleared + "0307c2"},
		{"vllm plain", Encoder{Form: VLLM, Plain: true, Rank: 0}, "93" + ts + "93" + "99" + stored + "c0" + "9291" + str("s") + "91" + str("s") + "93" + removed + cleared + "00"},
		{"vllm maps", Encoder{Form: VLLMMaps, Plain: true, Rank: -1}, "82" + str("ts") + ts + str("events") + "93" +
			"89" + str("type") + str("BlockStored") + str("block_hashes") + "9205fa" + str("parent_block_hash") + "cd012c" + str("token_ids") + "94010203ce00011170" +
			str("block_size") + "02" + str("lora_id") + "c0" + str("medium") + str("GPU") + str("lora_name") + "c0" + str("extra_keys") + "9291" + str("s") + "91" + str("s") +
			"83" + str("type") + str("BlockRemoved") + str("block_hashes") + "9105" + str("medium") + str("CPU") +
			"81" + str("type") + "b0" + hex.EncodeToString([]byte("AllBlocksCleared"))},
	} {
		c.e.Media, c.e.PagesMax = [3]string{"GPU", "CPU", ""}, 100
		got, err := c.e.Encode(&batch)
		if err != nil || len(got) != 1 {
			t.Fatalf("%s: %d payloads, %v", c.name, len(got), err)
		}
		if hex.EncodeToString(got[0]) != c.want {
			t.Errorf("%s:\n got %x\nwant %s", c.name, got[0], c.want)
		}
	}
}

// TestLargeRunsAreCut: a run longer than a message goes on in the next one, whose parent is the last block before.
func TestLargeRunsAreCut(t *testing.T) {
	b := events.Batch{Snapshot: true, Events: []events.Event{{Kind: events.Stored, PageTokens: 1}}}
	for i := range 25 {
		b.Events[0].Hashes = append(b.Events[0].Hashes, int64(i+1))
		b.Events[0].Tokens = append(b.Events[0].Tokens, uint32(i))
	}
	e := Encoder{Rank: -1, Media: [3]string{"GPU", "CPU", ""}, PagesMax: 10}
	payloads, err := e.Encode(&b)
	if err != nil || len(payloads) != 3 {
		t.Fatalf("%d payloads, %v", len(payloads), err)
	}
	c := newConsumer(SGLang, false)
	for _, p := range payloads {
		if err := c.apply(p); err != nil {
			t.Fatal(err)
		}
	}
	if len(c.blocks) != 25 || c.orphan != 0 {
		t.Fatalf("%d blocks, %d orphans", len(c.blocks), c.orphan)
	}
}

// subscriber is a consumer at the other end of real sockets.
type subscriber struct {
	*consumer
	t    testing.TB
	sub  zmq4.Socket
	msgs chan zmq4.Msg
	next int64 // number of the message that must follow; -1: any
}

func subscribe(t testing.TB, addr net.Addr, topic string) *subscriber {
	t.Helper()
	life, cancel := context.WithCancel(ctx)
	s := &subscriber{consumer: newConsumer(SGLang, false), t: t, sub: zmq4.NewSub(life), msgs: make(chan zmq4.Msg, 10000), next: -1}
	if err := s.sub.Dial("tcp://" + addr.String()); err != nil {
		t.Fatal(err)
	}
	if err := s.sub.SetOption(zmq4.OptionSubscribe, topic); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for {
			m, err := s.sub.Recv()
			if err != nil {
				return
			}
			s.msgs <- m
		}
	}()
	t.Cleanup(func() {
		cancel()
		_ = s.sub.Close()
		<-ended
	})
	return s
}

// replay asks the ROUTER for everything from a number on and applies it.
func (s *subscriber) replay(addr net.Addr, from int64) {
	s.t.Helper()
	life, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	d := zmq4.NewDealer(life)
	defer func() { _ = d.Close() }()
	if err := d.Dial("tcp://" + addr.String()); err != nil {
		s.t.Fatal(err)
	}
	if err := d.SendMulti(zmq4.NewMsgFrom(nil, binary.BigEndian.AppendUint64(nil, uint64(from)))); err != nil {
		s.t.Fatal(err)
	}
	for {
		m, err := d.Recv()
		if err != nil {
			s.t.Fatalf("replay: %v", err)
		}
		if len(m.Frames) != 3 || len(m.Frames[0]) != 0 || len(m.Frames[1]) != 8 {
			s.t.Fatalf("replay sent %q", m.Frames)
		}
		seq := int64(binary.BigEndian.Uint64(m.Frames[1]))
		if seq == -1 {
			if len(m.Frames[2]) != 0 {
				s.t.Fatal("the end of a replay has a payload")
			}
			return
		}
		s.take(seq, m.Frames[2])
	}
}

// take applies a message; one that was seen already, by replay, is left out.
func (s *subscriber) take(seq int64, payload []byte) {
	s.t.Helper()
	if s.next >= 0 && seq < s.next {
		return
	}
	if err := s.apply(payload); err != nil {
		s.t.Fatal(err)
	}
	s.next = seq + 1
}

// catchUp reads messages until nothing has come for a while; it reports whether a number was missing.
func (s *subscriber) catchUp(quiet time.Duration) (gap bool) {
	s.t.Helper()
	for {
		select {
		case m := <-s.msgs:
			if len(m.Frames) != 3 || string(m.Frames[0]) != "kv@1" {
				s.t.Fatalf("frames %q", m.Frames)
			}
			seq := int64(binary.BigEndian.Uint64(m.Frames[1]))
			gap = gap || s.next >= 0 && seq > s.next
			s.take(seq, m.Frames[2])
		case <-time.After(quiet):
			return gap
		}
	}
}

func publish(t testing.TB, c *hicache.Cache, o Options) *Publisher {
	t.Helper()
	o.Endpoint, o.ReplayEndpoint, o.Topic, o.AllPools = "tcp://127.0.0.1:0", "tcp://127.0.0.1:0", "kv@1", true
	p, err := Publish(c, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	return p
}

const quiet = 300 * time.Millisecond

// TestPublishedOverSockets: a subscriber over TCP, one that joins in the middle, and one that survives the publisher all converge.
func TestPublishedOverSockets(t *testing.T) {
	l := open(t, 2)
	p := publish(t, l.c, Options{})
	first := subscribe(t, p.Addr(), "kv")
	time.Sleep(quiet) // a subscription takes its time; what was published before is gone, as with any PUB socket
	first.replay(p.ReplayAddr(), 0)
	other := subscribe(t, p.Addr(), "elsewhere")
	for range 1500 {
		l.op()
	}
	l.flush()
	if first.catchUp(quiet) {
		t.Error("a number was missing")
	}
	first.compare(t, l.c, true)
	if len(other.msgs) > 0 {
		t.Errorf("%d messages of a topic that was not subscribed to", len(other.msgs))
	}

	late := subscribe(t, p.Addr(), "")
	time.Sleep(quiet)
	late.replay(p.ReplayAddr(), 0)
	for range 300 {
		l.op()
	}
	l.flush()
	late.catchUp(quiet)
	late.compare(t, l.c, true)

	p.Close()
	for range 300 {
		l.op()
	}
	l.flush()
	again := publish(t, l.c, Options{}) // numbers start anew
	moved := subscribe(t, again.Addr(), "")
	moved.consumer = first.consumer
	moved.replay(again.ReplayAddr(), 0)
	moved.catchUp(quiet)
	moved.compare(t, l.c, true)
}

// TestReplayBeyondTheBuffer: who asks for what is not kept any more gets a snapshot and converges.
func TestReplayBeyondTheBuffer(t *testing.T) {
	l := open(t, 3)
	p := publish(t, l.c, Options{BufferMessages: 8, PagesMax: 100})
	for range 2000 {
		l.op()
		if l.r.IntN(20) == 0 {
			time.Sleep(time.Millisecond) // so that there are many messages
		}
	}
	l.flush()
	for _, from := range []int64{0, 1 << 40, -5} {
		s := subscribe(t, p.Addr(), "")
		time.Sleep(quiet)
		s.replay(p.ReplayAddr(), from)
		s.catchUp(quiet)
		s.compare(t, l.c, true)
		if s.orphan > 0 {
			t.Errorf("%d blocks below unknown parents", s.orphan)
		}
	}
}

// TestSubscriberThatDoesNotRead holds up neither the cache, nor other subscribers, nor the end.
func TestSubscriberThatDoesNotRead(t *testing.T) {
	l := open(t, 4)
	p := publish(t, l.c, Options{QueueMessages: 4})
	raw, err := net.Dial("tcp", p.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = raw.Close() }()
	deaf, err := zmq4.Open(raw, null.Security(), zmq4.Sub, nil, false, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := deaf.SendMsg(zmq4.NewMsg([]byte{1})); err != nil {
		t.Fatal(err)
	}
	half, err := net.Dial("tcp", p.Addr().String()) // and one that never says hello
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = half.Close() }()
	s := subscribe(t, p.Addr(), "")
	time.Sleep(quiet)
	s.replay(p.ReplayAddr(), 0)
	for i := range 3000 {
		l.op()
		if i%100 == 0 {
			time.Sleep(2 * time.Millisecond)
		}
	}
	l.flush()
	if s.catchUp(quiet) { // its queue is short, too
		s.replay(p.ReplayAddr(), 1<<40)
		s.catchUp(quiet)
	}
	s.compare(t, l.c, true)
	start := time.Now()
	p.Close()
	if d := time.Since(start); d > 5*time.Second {
		t.Errorf("closing took %v", d)
	}
}

// TestBadConsumers: nonsense on either socket ends that connection or is passed over, and nothing else.
func TestBadConsumers(t *testing.T) {
	l := open(t, 5)
	p := publish(t, l.c, Options{})
	for _, addr := range []net.Addr{p.Addr(), p.ReplayAddr()} {
		for _, junk := range [][]byte{{}, []byte("GET / HTTP/1.1\r\n\r\n"), make([]byte, 200)} {
			raw, err := net.Dial("tcp", addr.String())
			if err != nil {
				t.Fatal(err)
			}
			if _, err := raw.Write(junk); err != nil {
				t.Fatal(err)
			}
			_ = raw.Close()
		}
	}
	raw, err := net.Dial("tcp", p.ReplayAddr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = raw.Close() }()
	d, err := zmq4.Open(raw, null.Security(), zmq4.Dealer, nil, false, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range []zmq4.Msg{zmq4.NewMsgFrom([]byte("what?")), zmq4.NewMsgFrom(nil, []byte("short"))} {
		if err := d.SendMsg(m); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := raw.Write([]byte{2, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff}); err != nil { // a frame of 2^64-1 bytes
		t.Fatal(err)
	}
	if err := raw.SetReadDeadline(time.Now().Add(10 * time.Second)); err != nil {
		t.Fatal(err)
	}
	if n, err := raw.Read(make([]byte, 1)); n > 0 || err == nil {
		t.Error("the connection goes on after a frame of 2^64-1 bytes")
	}
	s := subscribe(t, p.Addr(), "")
	s.replay(p.ReplayAddr(), 0)
	for range 100 {
		l.op()
	}
	l.flush()
	s.catchUp(quiet)
}

func TestRefusedOptions(t *testing.T) {
	l := open(t, 6)
	for name, o := range map[string]Options{"no endpoint": {}, "scheme": {Endpoint: "udp://127.0.0.1:1"}, "replay": {Endpoint: "tcp://127.0.0.1:0", ReplayEndpoint: "x"},
		"form": {Endpoint: "tcp://127.0.0.1:0", Form: 9}, "negative": {Endpoint: "tcp://127.0.0.1:0", PagesMax: -1}} {
		if p, err := Publish(l.c, o); err == nil {
			p.Close()
			t.Errorf("%s: accepted", name)
		}
	}
	ipc := fmt.Sprintf("ipc://%s/events", t.TempDir())
	p, err := Publish(l.c, Options{Endpoint: ipc})
	if err != nil {
		t.Fatal(err)
	}
	if p.ReplayAddr() != nil {
		t.Error("a replay address without a replay endpoint")
	}
	p.Close()
	p.Close()
}
