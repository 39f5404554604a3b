// Package zmq publishes what changes in a cache in the form in which SGLang and vLLM publish their KV events: msgpack over a ZeroMQ PUB socket,
// with a ROUTER socket beside it for consumers that missed something. Whatever follows those, a cache-aware router say, can follow a cache.
//
// A message has three frames: the topic, a number that rises by one a message (8 bytes, big-endian), and a batch (see [Form]). A consumer that
// finds a number missing, or joins late, asks the ROUTER for everything from a number on (an empty frame, then the 8 bytes); it is sent those
// messages, each as an empty frame, the number and the batch, and -1 with an empty batch as the end. What the publisher does not have any more
// is replaced by a snapshot: AllBlocksCleared and then all there is. The first message of a publisher is one, too, so that a consumer who
// outlived a restart starts from nothing; the epoch in each batch tells restarts apart.
//
// Form: vllm/distributed/kv_events.py and sglang/srt/disaggregation/kv_events.py of those projects.
package zmq

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"sync"

	"github.com/go-zeromq/zmq4"

	hicache "github.com/hicache/hicache/gohicache"
	"github.com/hicache/hicache/gohicache/events"
)

// Options of a publisher. The zero value of a field is its documented default.
type Options struct {
	// Endpoint of the PUB socket: "tcp://*:5557", "tcp://127.0.0.1:0", "ipc:///run/cache.events". Required.
	Endpoint string
	// ReplayEndpoint of the ROUTER socket; "": none.
	ReplayEndpoint string
	// Topic of every message. Default "".
	Topic string
	// Form of the batches. Default SGLang.
	Form Form
	// Plain leaves out what the published forms do not have; see [Encoder.Plain].
	Plain bool
	// Rank is the data-parallel rank; nil: none.
	Rank *int
	// AllPools publishes window and state pools too, as groups; default: the FULL pool alone.
	AllPools bool
	// Media are the names of the tiers. Default "GPU", "CPU" and "" (storage is not published).
	Media [3]string
	// BufferMessages is how many messages are kept for replay, at least. Default 10,000.
	BufferMessages int
	// QueueMessages is how many messages may wait for one consumer before it loses some. Default 10,000.
	QueueMessages int
	// PagesMax is the most pages in one message. Default 4,096.
	PagesMax int
	// QueuePages is the size of the cache's queue for the publisher; see hicache.EventOptions.
	QueuePages int
	// Logger gets what an operator should know. Default: nothing.
	Logger *slog.Logger
}

func (o *Options) encoder(c *hicache.Cache) Encoder {
	e := Encoder{Form: o.Form, Plain: o.Plain, Rank: -1, AllPools: o.AllPools, Media: o.Media, PagesMax: o.PagesMax}
	if o.Rank != nil {
		e.Rank = *o.Rank
	}
	for i, p := range c.Pools() {
		if p.Role == hicache.Full {
			e.FullPool = i
		}
	}
	return e
}

// Publisher publishes one cache until Close.
type Publisher struct {
	o       Options
	encoder Encoder
	log     *slog.Logger
	stream  *events.Stream
	stop    context.CancelFunc
	ctx     context.Context
	pub     net.Listener
	replay  net.Listener // nil without
	work    sync.WaitGroup

	mu     sync.Mutex
	next   int64 // number of the next message
	buffer []message
	fresh  chan struct{} // closed when a snapshot was published
	peers  map[*peer]bool
	closed bool
}

// message is one published message.
type message struct {
	seq      int64
	snapshot bool // the first of a snapshot
	payload  []byte
}

const (
	defaultBuffer   = 10_000
	defaultQueue    = 10_000
	defaultPagesMax = 4096
)

// Publish opens the sockets and starts to publish. The cache must have been opened with Options.Events. Close the publisher before the cache, or
// after: it ends with it.
func Publish(c *hicache.Cache, o Options) (*Publisher, error) {
	for _, f := range []struct {
		field *int
		value int
	}{{&o.BufferMessages, defaultBuffer}, {&o.QueueMessages, defaultQueue}, {&o.PagesMax, defaultPagesMax}} {
		if *f.field == 0 {
			*f.field = f.value
		}
		if *f.field < 0 {
			return nil, fmt.Errorf("zmq: %d: sizes must not be negative", *f.field)
		}
	}
	if o.Media == [3]string{} {
		o.Media = [3]string{"GPU", "CPU", ""}
	}
	if o.Form > VLLMMaps {
		return nil, fmt.Errorf("zmq: %d is no form", o.Form)
	}
	p := &Publisher{o: o, encoder: o.encoder(c), log: o.Logger, fresh: make(chan struct{}), peers: map[*peer]bool{}}
	if p.log == nil {
		p.log = slog.New(slog.DiscardHandler)
	}
	var err error
	if p.pub, err = listen(o.Endpoint); err != nil {
		return nil, err
	}
	if o.ReplayEndpoint != "" {
		if p.replay, err = listen(o.ReplayEndpoint); err != nil {
			return nil, errors.Join(err, p.pub.Close())
		}
	}
	if p.stream, err = c.Events(hicache.EventOptions{QueuePages: o.QueuePages}); err != nil {
		p.closeListeners()
		return nil, err
	}
	p.ctx, p.stop = context.WithCancel(context.Background())
	p.start(p.run)
	p.start(func() { p.accept(p.pub, zmq4.Pub, o.QueueMessages, (*peer).subscriptions) })
	if p.replay != nil {
		p.start(func() { p.accept(p.replay, zmq4.Router, replayQueue, p.replays) })
	}
	return p, nil
}

const replayQueue = 16

// listen opens an endpoint as the published systems write it.
func listen(endpoint string) (net.Listener, error) {
	scheme, addr, ok := strings.Cut(endpoint, "://")
	switch {
	case ok && scheme == "tcp":
		l, err := net.Listen("tcp", strings.Replace(addr, "*", "", 1))
		if err != nil {
			return nil, fmt.Errorf("zmq: endpoint %q: %w", endpoint, err)
		}
		return l, nil
	case ok && scheme == "ipc":
		l, err := net.Listen("unix", addr)
		if err != nil {
			return nil, fmt.Errorf("zmq: endpoint %q: %w", endpoint, err)
		}
		return l, nil
	}
	return nil, fmt.Errorf("zmq: endpoint %q is neither tcp://host:port nor ipc://path", endpoint)
}

// Addr is where the PUB socket listens; ReplayAddr is nil without a ROUTER socket.
func (p *Publisher) Addr() net.Addr { return p.pub.Addr() }

// ReplayAddr is where the ROUTER socket listens.
func (p *Publisher) ReplayAddr() net.Addr {
	if p.replay == nil {
		return nil
	}
	return p.replay.Addr()
}

// Close ends the publisher and its connections; messages that consumers have not read are lost. A second Close does nothing.
func (p *Publisher) Close() {
	p.stop()
	p.stream.Close()
	p.closeListeners()
	p.mu.Lock()
	p.closed = true
	for q := range p.peers {
		q.close()
	}
	p.mu.Unlock()
	p.work.Wait()
}

func (p *Publisher) closeListeners() {
	_ = p.pub.Close()
	if p.replay != nil {
		_ = p.replay.Close()
	}
}

func (p *Publisher) start(f func()) {
	p.work.Add(1)
	go func() {
		defer p.work.Done()
		f()
	}()
}

// run publishes what the stream says until it ends.
func (p *Publisher) run() {
	for {
		b, err := p.stream.Next(p.ctx)
		if err != nil {
			return
		}
		payloads, err := p.encoder.Encode(b)
		if err != nil {
			p.log.Error("hicache: events cannot be encoded", "error", err)
			p.stream.Resync()
			continue
		}
		for i, payload := range payloads {
			p.publish(payload, b.Snapshot && i == 0)
		}
		if b.Snapshot {
			p.mu.Lock()
			close(p.fresh)
			p.fresh = make(chan struct{})
			p.mu.Unlock()
		}
	}
}

// publish numbers a message, keeps it for replay and offers it to every subscriber.
func (p *Publisher) publish(payload []byte, snapshot bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	m := message{p.next, snapshot, payload}
	p.next++
	if len(p.buffer) >= 2*p.o.BufferMessages { // now and then, so that a message costs O(1)
		n := copy(p.buffer, p.buffer[p.o.BufferMessages:])
		clear(p.buffer[n:])
		p.buffer = p.buffer[:n]
	}
	p.buffer = append(p.buffer, m)
	out := zmq4.NewMsgFrom([]byte(p.o.Topic), number(m.seq), payload)
	for q := range p.peers {
		q.offer(p.o.Topic, out)
	}
}

func number(seq int64) []byte { return binary.BigEndian.AppendUint64(nil, uint64(seq)) }

// accept serves connections until the listener closes.
func (p *Publisher) accept(l net.Listener, kind zmq4.SocketType, queue int, serve func(*peer)) {
	for {
		raw, err := l.Accept()
		if err != nil {
			return
		}
		p.start(func() {
			unwatch := context.AfterFunc(p.ctx, func() { _ = raw.Close() })
			defer unwatch()
			q, err := greet(raw, kind, queue)
			if err != nil {
				_ = raw.Close()
				p.log.Warn("hicache: an event consumer could not connect", "from", raw.RemoteAddr(), "error", err)
				return
			}
			p.mu.Lock()
			if p.closed {
				p.mu.Unlock()
				q.close()
				return
			}
			if kind == zmq4.Pub {
				p.peers[q] = true
			}
			p.mu.Unlock()
			p.start(q.write)
			serve(q)
			p.mu.Lock()
			delete(p.peers, q)
			p.mu.Unlock()
		})
	}
}

// replays answers requests of one consumer until it goes.
func (p *Publisher) replays(q *peer) {
	defer q.close()
	for {
		frames, command, err := q.read()
		if err != nil {
			return
		}
		if command {
			q.command(frames[0])
			continue
		}
		if len(frames) != 2 || len(frames[0]) != 0 || len(frames[1]) != 8 {
			p.log.Warn("hicache: a request for replay is not an empty frame and 8 bytes", "frames", len(frames))
			continue
		}
		for _, m := range p.from(int64(binary.BigEndian.Uint64(frames[1]))) {
			if !q.send(zmq4.NewMsgFrom(nil, number(m.seq), m.payload)) {
				return
			}
		}
		if !q.send(zmq4.NewMsgFrom(nil, number(-1), nil)) {
			return
		}
	}
}

// from is everything from a number on. If some of it is not kept any more, or the number is not one of this publisher's, a snapshot is
// published for it and everything from that on is the answer.
func (p *Publisher) from(seq int64) []message {
	p.mu.Lock()
	known := seq >= 0 && seq <= p.next && (seq == p.next || len(p.buffer) > 0 && p.buffer[0].seq <= seq)
	fresh := p.fresh
	if known {
		defer p.mu.Unlock()
		return p.after(seq)
	}
	p.mu.Unlock()
	p.stream.Resync()
	select {
	case <-fresh:
	case <-p.ctx.Done():
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for i := len(p.buffer) - 1; i >= 0; i-- {
		if p.buffer[i].snapshot {
			return p.after(p.buffer[i].seq)
		}
	}
	p.log.Warn("hicache: a snapshot is larger than BufferMessages, so replay cannot serve it", "messages", p.o.BufferMessages)
	return nil
}

// after copies the buffer from a number on. mu is held.
func (p *Publisher) after(seq int64) []message {
	for i, m := range p.buffer {
		if m.seq >= seq {
			return append([]message(nil), p.buffer[i:]...)
		}
	}
	return nil
}
