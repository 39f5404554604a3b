package lifecycle

import (
	"testing"

	"github.com/hicache/hicache/ffi"
	"github.com/hicache/hicache/gohicache/internal/radix"
	"github.com/hicache/hicache/gohicache/storage"
)

// TestKeyFields (C74): a key changes with every field that decides about a page's bytes, with the pool, and with the prefix; and with nothing else.
func TestKeyFields(t *testing.T) {
	base := func() Config {
		return Config{PageTokens: 16, KeyFields: KeyFields{Model: "m", DType: "bf16", Rank: 0, Ranks: 2}, Pools: []Pool{
			{Name: "full", Role: radix.Full, Layers: []uint32{0, 2}, KRowBytes: 64, VRowBytes: 64}, {Name: "swa", Role: radix.SWA, Layers: []uint32{1}, KRowBytes: 64, WindowTokens: 8}}}
	}
	envelopes := []form{{order: ffi.HostLayoutEnvelope}, {order: ffi.HostLayoutEnvelope}}
	hash := radix.HashPages(nil, []uint32{1, 2, 3, 4}, 4, nil)[0]
	of := func(change func(*Config)) storage.Key {
		cfg := base()
		change(&cfg)
		return newKeychain(&cfg, envelopes).key(0, hash)
	}
	seen := map[storage.Key]string{of(func(*Config) {}): "nothing"}
	for name, change := range map[string]func(*Config){
		"model":                            func(c *Config) { c.KeyFields.Model = "n" },
		"data type":                        func(c *Config) { c.KeyFields.DType = "fp8" },
		"rank":                             func(c *Config) { c.KeyFields.Rank = 1 },
		"ranks":                            func(c *Config) { c.KeyFields.Ranks = 4 },
		"page tokens":                      func(c *Config) { c.PageTokens = 32 },
		"bigrams":                          func(c *Config) { c.Tokens = radix.Bigram },
		"name":                             func(c *Config) { c.Pools[0].Name = "other" },
		"role":                             func(c *Config) { c.Pools[0].Role = radix.SWA },
		"layout":                           func(c *Config) { c.Pools[0].Layout = 1 },
		"K row":                            func(c *Config) { c.Pools[0].KRowBytes = 128 },
		"V row":                            func(c *Config) { c.Pools[0].VRowBytes = 0 },
		"page bytes":                       func(c *Config) { c.Pools[0].PageBytes = 1 << 20 },
		"layers":                           func(c *Config) { c.Pools[0].Layers = []uint32{0, 3} },
		"more layers":                      func(c *Config) { c.Pools[0].Layers = []uint32{0, 2, 4} },
		"model and data type run together": func(c *Config) { c.KeyFields.Model, c.KeyFields.DType = "mb", "f16" },
	} {
		k := of(change)
		if other, ok := seen[k]; ok {
			t.Errorf("a change of %s gives the key of a change of %s", name, other)
		}
		seen[k] = name
	}
	for name, change := range map[string]func(*Config){
		"sizes":      func(c *Config) { c.DeviceBytes, c.HostBytes = 1<<30, 1<<31 },
		"wide ids":   func(c *Config) { c.Tokens = radix.Wide },
		"a window":   func(c *Config) { c.Pools[1].WindowTokens = 16 },
		"policies":   func(c *Config) { c.WritePolicy, c.WriteThreshold = WriteBack, 7 },
		"batch size": func(c *Config) { c.StorageBatch = 99 },
	} {
		if seen[of(change)] != "nothing" {
			t.Errorf("%s decide about a key", name)
		}
	}
	// The objects that a page is in: none may be taken for one of another cut.
	forms := map[storage.Key]string{}
	for name, c := range map[string]struct {
		heads int
		form  form
	}{
		"an envelope":          {2, form{order: ffi.HostLayoutEnvelope, parts: make([]part, 1)}},
		"page first, whole":    {2, form{order: ffi.HostLayoutPageFirst, parts: make([]part, 1)}},
		"page first, K and V":  {2, form{order: ffi.HostLayoutPageFirst, parts: make([]part, 2)}},
		"page head, two parts": {2, form{order: ffi.HostLayoutPageHead, parts: make([]part, 2)}},
		"page head, 4 heads":   {4, form{order: ffi.HostLayoutPageHead, parts: make([]part, 2)}},
	} {
		cfg := base()
		cfg.Pools[0].Heads = c.heads
		k := newKeychain(&cfg, []form{c.form, c.form}).key(0, hash)
		if other, ok := forms[k]; ok {
			t.Errorf("%s has the key of %s", name, other)
		}
		forms[k] = name
	}
	cfg := base()
	keys := newKeychain(&cfg, envelopes)
	if keys.key(0, hash) == keys.key(1, hash) || keys.key(0, hash) == keys.key(0, radix.Hash{}) {
		t.Error("pools, or prefixes, share a key")
	}
}
