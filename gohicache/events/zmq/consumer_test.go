package zmq

import (
	"fmt"
	"testing"

	"github.com/vmihailenco/msgpack/v5"

	hicache "github.com/hicache/hicache/gohicache"
	"github.com/hicache/hicache/gohicache/events"
)

// block is what a consumer of the published form knows of a page: where, in which group, under which id.
type block struct {
	medium string
	group  int
	hash   int64
}

// consumer is a router's view of a cache, written from the published form alone: it knows nothing of package events.
type consumer struct {
	form   Form
	plain  bool
	blocks map[block]bool
	known  map[int64]int // on how many media and groups; a child of an unknown parent is dropped
	orphan int
	epoch  uint64
	why    map[string]int
}

func newConsumer(form Form, plain bool) *consumer {
	return &consumer{form: form, plain: plain, blocks: map[block]bool{}, known: map[int64]int{}, why: map[string]int{}}
}

// fields are the names of an event's fields in the order of arrays.
func (c *consumer) fields(tag string) []string {
	switch {
	case tag == "BlockStored" && c.form == SGLang:
		return []string{"type", "block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id", "medium", "cache_salt", "session_id", "lora_name", "group_idx"}
	case tag == "BlockStored":
		return []string{"type", "block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id", "medium", "lora_name", "extra_keys", "group_idx"}
	case tag == "BlockRemoved":
		return []string{"type", "block_hashes", "medium", "group_idx", "reason"}
	}
	return []string{"type"}
}

func number64(v any) int64 {
	switch n := v.(type) {
	case int8:
		return int64(n)
	case int16:
		return int64(n)
	case int32:
		return int64(n)
	case int64:
		return n
	case uint8:
		return int64(n)
	case uint16:
		return int64(n)
	case uint32:
		return int64(n)
	case uint64:
		return int64(n)
	}
	panic(fmt.Sprintf("%T is no number", v))
}

// apply takes in one payload.
func (c *consumer) apply(payload []byte) error {
	var raw any
	if err := msgpack.Unmarshal(payload, &raw); err != nil {
		return err
	}
	var list []any
	if c.form == VLLMMaps {
		m := raw.(map[string]any)
		list = m["events"].([]any)
		if !c.plain {
			c.epoch = uint64(number64(m["epoch"]))
		}
	} else {
		m := raw.([]any)
		if _, ok := m[0].(float64); !ok {
			return fmt.Errorf("time is %T", m[0])
		}
		list = m[1].([]any)
		if !c.plain {
			c.epoch = uint64(number64(m[3]))
		}
	}
	for _, e := range list {
		event := map[string]any{}
		if c.form == VLLMMaps {
			event = e.(map[string]any)
		} else {
			array := e.([]any)
			for i, name := range c.fields(array[0].(string)) {
				if i < len(array) {
					event[name] = array[i]
				}
			}
		}
		if err := c.event(event); err != nil {
			return err
		}
	}
	return nil
}

func (c *consumer) event(e map[string]any) error {
	var hashes []int64
	if list, ok := e["block_hashes"].([]any); ok {
		for _, h := range list {
			hashes = append(hashes, number64(h))
		}
	}
	b := block{}
	b.medium, _ = e["medium"].(string)
	if g := e["group_idx"]; g != nil {
		b.group = int(number64(g))
	}
	switch e["type"] {
	case "AllBlocksCleared":
		clear(c.blocks)
		clear(c.known)
	case "BlockStored":
		if n := len(e["token_ids"].([]any)); n != len(hashes)*int(number64(e["block_size"])) {
			return fmt.Errorf("%d tokens for %d blocks", n, len(hashes))
		}
		if parent := e["parent_block_hash"]; parent != nil && c.known[number64(parent)] == 0 {
			c.orphan += len(hashes)
		}
		for _, b.hash = range hashes {
			if !c.blocks[b] {
				c.blocks[b] = true
				c.known[b.hash]++
			}
		}
	case "BlockRemoved":
		if reason, ok := e["reason"].(string); ok {
			c.why[reason] += len(hashes)
		}
		for _, b.hash = range hashes {
			if c.blocks[b] {
				delete(c.blocks, b)
				c.known[b.hash]--
			}
		}
	default:
		return fmt.Errorf("event %v", e["type"])
	}
	return nil
}

// compare checks the consumer against the cache: pages counted by the cache itself, and page by page.
func (c *consumer) compare(t testing.TB, cache *hicache.Cache, allPools bool) {
	t.Helper()
	s, err := cache.Events(hicache.EventOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	b, err := s.Poll()
	if err != nil {
		t.Fatal(err)
	}
	full := 0
	for i, p := range cache.Pools() {
		if p.Role == hicache.Full {
			full = i
		}
	}
	want := map[block]bool{}
	for _, e := range b.Events {
		group := e.Pool
		if group == full {
			group = 0
		} else if !allPools {
			continue
		}
		for _, h := range e.Hashes {
			want[block{[]string{"GPU", "CPU"}[e.Tier], group, h}] = true
		}
	}
	for w := range want {
		if !c.blocks[w] {
			t.Fatalf("the cache has %v, the consumer does not", w)
		}
	}
	if len(want) != len(c.blocks) {
		t.Fatalf("the consumer has %d blocks, the cache %d", len(c.blocks), len(want))
	}
	counts := map[string]uint64{}
	for b := range c.blocks {
		if b.group == 0 {
			counts[b.medium]++
		}
	}
	for medium, tier := range map[string]hicache.Tier{"GPU": hicache.TierDevice, "CPU": hicache.TierHost} {
		st, err := cache.PoolStats(tier, full)
		if err != nil {
			t.Fatal(err)
		}
		if counts[medium] != st.Cached {
			t.Fatalf("the consumer has %d blocks on %s, the cache counts %d", counts[medium], medium, st.Cached)
		}
	}
}

// feed takes in everything that a stream has now.
func (c *consumer) feed(t testing.TB, e *Encoder, s *events.Stream) {
	t.Helper()
	for {
		b, err := s.Poll()
		if err != nil {
			t.Fatal(err)
		}
		if b == nil {
			return
		}
		payloads, err := e.Encode(b)
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range payloads {
			if err := c.apply(p); err != nil {
				t.Fatal(err)
			}
		}
	}
}
