package zmq

import (
	"bytes"

	"github.com/vmihailenco/msgpack/v5"

	"github.com/hicache/hicache/gohicache/events"
)

// Form is how events are laid out. The forms agree up to the medium of a block; what follows it differs.
type Form uint8

const (
	// SGLang writes arrays: BlockStored is [tag, block_hashes, parent_block_hash, token_ids, block_size, lora_id, medium, cache_salt, session_id,
	// lora_name], BlockRemoved [tag, block_hashes, medium], AllBlocksCleared [tag], and a batch [ts, events, rank].
	SGLang Form = iota
	// VLLM writes arrays: BlockStored is [tag, block_hashes, parent_block_hash, token_ids, block_size, lora_id, medium, lora_name, extra_keys,
	// group_idx].
	VLLM
	// VLLMMaps writes maps with the same names, the tag as "type", as vLLM does since it names the cache groups of hybrid models.
	VLLMMaps
)

// Encoder turns batches of a stream into payloads of messages. It has no state.
type Encoder struct {
	Form Form
	// Plain leaves out what the published forms do not have: reason, epoch, snapshot mark and, with SGLang, the group. Without it these follow
	// at the end of arrays (a batch: [ts, events, rank, epoch, snapshot]; BlockRemoved: [..., medium, group_idx, reason]), where readers that do
	// not know them stop before.
	Plain bool
	// Rank is the data-parallel rank; negative: none.
	Rank int
	// FullPool is the pool whose pages are published without a group. Others are left out unless AllPools is set; then they have their index
	// as group_idx.
	FullPool int
	AllPools bool
	// Media are the names of device, host and storage. An empty one is not published.
	Media [3]string
	// PagesMax is the most pages in one message.
	PagesMax int
}

// Encode gives the payloads for a batch, in order; none if there is nothing to publish. A snapshot begins with AllBlocksCleared, so that a
// consumer that knows only the published form has exactly what the cache has.
func (e *Encoder) Encode(b *events.Batch) ([][]byte, error) {
	var out [][]byte
	var list []events.Event
	pages := 0
	flush := func() error {
		if len(list) == 0 {
			return nil
		}
		payload, err := e.batch(b, list)
		out, list, pages = append(out, payload), nil, 0
		return err
	}
	if b.Snapshot {
		list = append(list, events.Event{Kind: events.Cleared})
	}
	for _, event := range b.Events {
		if event.Kind != events.Cleared && (e.Media[event.Tier] == "" || event.Pool != e.FullPool && !e.AllPools) {
			continue
		}
		for {
			rest := event
			n := min(len(event.Hashes), e.PagesMax-pages)
			event.Hashes, rest.Hashes = event.Hashes[:n], event.Hashes[n:]
			if len(event.Tokens) > 0 {
				event.Tokens, rest.Tokens = event.Tokens[:n*event.PageTokens], event.Tokens[n*event.PageTokens:]
			}
			if len(event.Wide) > 0 {
				event.Wide, rest.Wide = event.Wide[:n*event.PageTokens], event.Wide[n*event.PageTokens:]
			}
			if n > 0 || event.Kind == events.Cleared {
				list = append(list, event)
			}
			pages += n
			if len(rest.Hashes) == 0 {
				break
			}
			if n > 0 {
				rest.Parent, rest.HasParent = event.Hashes[n-1], true
			}
			if err := flush(); err != nil {
				return nil, err
			}
			event = rest
		}
	}
	return out, flush()
}

func (e *Encoder) batch(b *events.Batch, list []events.Event) ([]byte, error) {
	var buf bytes.Buffer
	w := writer{Encoder: msgpack.NewEncoder(&buf)}
	w.UseCompactInts(true)
	ts := float64(b.Time.UnixNano()) / 1e9
	if e.Form == VLLMMaps {
		n := 2
		if e.Rank >= 0 {
			n++
		}
		if !e.Plain {
			n += 2
		}
		w.do(w.EncodeMapLen(n))
		w.text("ts")
		w.do(w.EncodeFloat64(ts))
		w.text("events")
	} else {
		n := 2
		switch {
		case !e.Plain:
			n = 5
		case e.Rank >= 0:
			n = 3
		}
		w.do(w.EncodeArrayLen(n))
		w.do(w.EncodeFloat64(ts))
	}
	w.do(w.EncodeArrayLen(len(list)))
	for i := range list {
		e.event(&w, &list[i])
	}
	switch {
	case e.Form == VLLMMaps:
		if e.Rank >= 0 {
			w.text("data_parallel_rank")
			w.do(w.EncodeInt(int64(e.Rank)))
		}
		if !e.Plain {
			w.text("epoch")
			w.do(w.EncodeUint(b.Epoch))
			w.text("snapshot")
			w.do(w.EncodeBool(b.Snapshot))
		}
	case !e.Plain:
		w.rank(e.Rank)
		w.do(w.EncodeUint(b.Epoch))
		w.do(w.EncodeBool(b.Snapshot))
	case e.Rank >= 0:
		w.rank(e.Rank)
	}
	return buf.Bytes(), w.err
}

// field is one field of an event: its name in maps, and how it is written; nil where it has its default.
type field struct {
	name  string
	write func()
}

func (e *Encoder) event(w *writer, event *events.Event) {
	hashes := func() {
		w.do(w.EncodeArrayLen(len(event.Hashes)))
		for _, h := range event.Hashes {
			w.do(w.EncodeInt(h))
		}
	}
	null := func() { w.do(w.EncodeNil()) }
	text := func(s string) func() { return func() { w.text(s) } }
	label := func(l events.Label) func() {
		if !l.Set {
			return null
		}
		return text(l.Text)
	}
	medium, group := text(""), func() {}
	if event.Kind != events.Cleared {
		medium = text(e.Media[event.Tier])
		group = nil
		if event.Pool != e.FullPool {
			group = func() { w.do(w.EncodeInt(int64(event.Pool))) }
		}
	}
	var tag string
	var fields []field
	switch event.Kind {
	case events.Stored:
		tag = "BlockStored"
		parent := null
		if event.HasParent {
			parent = func() { w.do(w.EncodeInt(event.Parent)) }
		}
		tokens := func() {
			w.do(w.EncodeArrayLen(len(event.Tokens) + len(event.Wide)))
			for _, t := range event.Wide {
				w.do(w.EncodeUint(t))
			}
			for _, t := range event.Tokens {
				w.do(w.EncodeUint(uint64(t)))
			}
		}
		size := func() { w.do(w.EncodeInt(int64(event.PageTokens))) }
		fields = []field{{"block_hashes", hashes}, {"parent_block_hash", parent}, {"token_ids", tokens}, {"block_size", size}, {"lora_id", null}, {"medium", medium}}
		if e.Form == SGLang {
			fields = append(fields, field{"cache_salt", label(event.Salt)}, field{"session_id", null}, field{"lora_name", label(event.LoRA)})
			if !e.Plain {
				fields = append(fields, field{"group_idx", group})
			}
		} else {
			fields = append(fields, field{"lora_name", label(event.LoRA)}, field{"extra_keys", e.extraKeys(w, event)}, field{"group_idx", group})
		}
	case events.Removed:
		tag = "BlockRemoved"
		fields = []field{{"block_hashes", hashes}, {"medium", medium}}
		if e.Form != SGLang || !e.Plain {
			fields = append(fields, field{"group_idx", group})
		}
		if !e.Plain {
			fields = append(fields, field{"reason", text(event.Reason.String())})
		}
	case events.Cleared:
		tag = "AllBlocksCleared"
	}
	e.fields(w, tag, fields)
}

// extraKeys are the parts of a namespace that vLLM puts into the keys of each block; nil where there are none.
func (e *Encoder) extraKeys(w *writer, event *events.Event) func() {
	var parts []string
	for _, l := range []events.Label{event.LoRA, event.Salt} {
		if l.Set {
			parts = append(parts, l.Text)
		}
	}
	if len(parts) == 0 {
		return nil
	}
	return func() {
		w.do(w.EncodeArrayLen(len(event.Hashes)))
		for range event.Hashes {
			w.do(w.EncodeArrayLen(len(parts)))
			for _, p := range parts {
				w.text(p)
			}
		}
	}
}

// fields writes an event: all fields of a map that differ from their default, an array as far as the last that does.
func (e *Encoder) fields(w *writer, tag string, fields []field) {
	if e.Form == VLLMMaps {
		n := 1
		for _, f := range fields {
			if f.write != nil {
				n++
			}
		}
		w.do(w.EncodeMapLen(n))
		w.text("type")
		w.text(tag)
		for _, f := range fields {
			if f.write != nil {
				w.text(f.name)
				f.write()
			}
		}
		return
	}
	for len(fields) > 0 && fields[len(fields)-1].write == nil {
		fields = fields[:len(fields)-1]
	}
	w.do(w.EncodeArrayLen(1 + len(fields)))
	w.text(tag)
	for _, f := range fields {
		if f.write == nil {
			w.do(w.EncodeNil())
		} else {
			f.write()
		}
	}
}

// writer keeps the first error.
type writer struct {
	*msgpack.Encoder
	err error
}

func (w *writer) do(err error) {
	if w.err == nil {
		w.err = err
	}
}

func (w *writer) text(s string) { w.do(w.EncodeString(s)) }

func (w *writer) rank(rank int) {
	if rank < 0 {
		w.do(w.EncodeNil())
		return
	}
	w.do(w.EncodeInt(int64(rank)))
}
