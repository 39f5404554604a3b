package zmq

import (
	"encoding/binary"
	"errors"
	"net"
	"strings"
	"sync"
	"time"

	"github.com/go-zeromq/zmq4"
	"github.com/go-zeromq/zmq4/security/null"
)

// peer is one connection of a consumer. The library does the handshake and the framing; queues are ours, one a consumer: one that does not
// read must hold up neither the others nor the end of the publisher.
type peer struct {
	conn *zmq4.Conn
	raw  net.Conn
	out  chan zmq4.Msg
	end  chan struct{}
	once sync.Once

	mu     sync.Mutex
	topics map[string]int
}

const (
	// frameMax bounds what a consumer may send: subscriptions and sequence numbers.
	frameMax     = 64 << 10
	framesMax    = 8
	handshakeMax = 10 * time.Second
	sendMax      = 30 * time.Second // for one message
)

// greet does the handshake of an accepted connection.
func greet(raw net.Conn, kind zmq4.SocketType, queue int) (*peer, error) {
	if err := raw.SetDeadline(time.Now().Add(handshakeMax)); err != nil {
		return nil, err
	}
	conn, err := zmq4.Open(raw, null.Security(), kind, nil, true, nil)
	if err != nil {
		return nil, err
	}
	if err := raw.SetDeadline(time.Time{}); err != nil {
		return nil, err
	}
	p := &peer{conn: conn, raw: raw, out: make(chan zmq4.Msg, queue), end: make(chan struct{}), topics: map[string]int{}}
	return p, nil
}

func (p *peer) close() {
	p.once.Do(func() {
		close(p.end)
		_ = p.raw.Close()
	})
}

// write sends what is queued until the peer ends.
func (p *peer) write() {
	defer p.close()
	for {
		select {
		case <-p.end:
			return
		case m := <-p.out:
			if p.raw.SetWriteDeadline(time.Now().Add(sendMax)) != nil {
				return
			}
			send := func() error { return p.conn.SendMsg(m) }
			if m.Type == zmq4.CmdMsg {
				send = func() error { return p.conn.SendCmd(zmq4.CmdPong, m.Frames[0]) }
			}
			if send() != nil {
				return
			}
		}
	}
}

// offer queues a message for a subscriber; one that lets its queue fill up loses it, as with any PUB socket, and sees the gap in the numbers.
func (p *peer) offer(topic string, m zmq4.Msg) {
	p.mu.Lock()
	wanted := false
	for t := range p.topics {
		wanted = wanted || strings.HasPrefix(topic, t)
	}
	p.mu.Unlock()
	if !wanted {
		return
	}
	select {
	case p.out <- m:
	default:
	}
}

// send queues a message and waits for room; false if the peer has ended.
func (p *peer) send(m zmq4.Msg) bool {
	select {
	case p.out <- m:
		return true
	case <-p.end:
		return false
	}
}

// subscriptions reads until the peer ends.
func (p *peer) subscriptions() {
	defer p.close()
	for {
		frames, command, err := p.read()
		if err != nil {
			return
		}
		if command {
			p.command(frames[0])
			continue
		}
		if len(frames) == 1 && len(frames[0]) > 0 {
			p.subscribe(frames[0][0] == 1, string(frames[0][1:]))
		}
	}
}

func (p *peer) subscribe(on bool, topic string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if on {
		p.topics[topic]++
	} else if p.topics[topic]--; p.topics[topic] <= 0 {
		delete(p.topics, topic)
	}
}

// command answers what a consumer's ZMTP layer says: heartbeats, and subscriptions of version 3.1.
func (p *peer) command(body []byte) {
	if len(body) == 0 || len(body) < 1+int(body[0]) {
		return
	}
	name, rest := string(body[1:1+body[0]]), body[1+body[0]:]
	switch name {
	case "SUBSCRIBE", "CANCEL":
		p.subscribe(name == "SUBSCRIBE", string(rest))
	case "PING":
		if len(rest) >= 2 { // a time to live, then a context that comes back
			p.send(zmq4.Msg{Frames: [][]byte{rest[2:]}, Type: zmq4.CmdMsg})
		}
	}
}

var errFrame = errors.New("zmq: a consumer sent a frame or a message that is too large")

// read reads one message or command.
func (p *peer) read() (frames [][]byte, command bool, err error) {
	const more, long, isCommand = 1, 2, 4
	for {
		var head [9]byte
		if _, err := p.conn.Read(head[:2]); err != nil {
			return nil, false, err
		}
		size := uint64(head[1])
		if head[0]&long != 0 {
			if _, err := p.conn.Read(head[2:]); err != nil {
				return nil, false, err
			}
			size = binary.BigEndian.Uint64(head[1:])
		}
		if size > frameMax || len(frames) == framesMax {
			return nil, false, errFrame
		}
		body := make([]byte, size)
		if _, err := p.conn.Read(body); err != nil {
			return nil, false, err
		}
		frames = append(frames, body)
		if head[0]&more == 0 {
			return frames, head[0]&isCommand != 0, nil
		}
	}
}
