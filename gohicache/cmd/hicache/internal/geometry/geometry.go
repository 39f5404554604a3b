// Package geometry knows the shapes of published models' KV caches and shrinks them for a small machine, and says how many bytes a size in
// tokens is.
package geometry

import (
	"fmt"
	"slices"
	"strings"
)

// Role of a pool.
type Role int

const (
	Full Role = iota
	SWA
	State
)

func (r Role) String() string { return [...]string{"full", "swa", "state"}[r] }

// RowMultiple is what every row's bytes are a multiple of, and the least they can be scaled to.
const RowMultiple = 16

// Pool is a set of layers whose pages have one size and one role.
type Pool struct {
	Name         string
	Role         Role
	Layers       []int // global layer ids, ascending
	KRowBytes    int64 // one layer's K row (latent row, recurrent state) of a token
	VRowBytes    int64 // one layer's V row (convolution state); 0 for a latent row
	WindowTokens int   // SWA only
	Heads        int   // KV heads of a row; 0 unknown, or rows that have none
}

// HeadsOf is the number of heads that the rows can be cut into: Heads, or where they were shrunk too far, as many of them as still have a multiple
// of RowMultiple bytes.
func (p *Pool) HeadsOf() int {
	n := p.Heads
	for n > 1 && (p.KRowBytes%int64(RowMultiple*n) != 0 || p.VRowBytes%int64(RowMultiple*n) != 0) {
		n /= 2
	}
	return n
}

// TokenBytes is what one token takes in all layers of the pool; for a STATE pool, what one state takes.
func (p *Pool) TokenBytes() int64 { return int64(len(p.Layers)) * (p.KRowBytes + p.VRowBytes) }

// PageTokens is the number of tokens in a page of this pool when full pages hold n.
func (p *Pool) PageTokens(n int) int {
	if p.Role == State {
		return 1
	}
	return n
}

// PageBytes is the size of a page envelope when full pages hold n tokens.
func (p *Pool) PageBytes(n int) int64 { return p.TokenBytes() * int64(p.PageTokens(n)) }

// Geometry is a model's KV cache on one GPU.
type Geometry struct {
	Name   string
	Source string // where the numbers are from
	Layers int
	Pools  []Pool
	Scale  int // by how much a token's bytes were shrunk; 1 as published
}

// Folded is the geometry for requests of at most requestTokens: a window that no request outgrows never slides, so its layers belong to the
// FULL pool, where a pool of their own would only cost a page of rounding. Pools whose rows differ from FULL's stay; g is not changed.
func (g Geometry) Folded(requestTokens int) Geometry {
	full := slices.IndexFunc(g.Pools, func(p Pool) bool { return p.Role == Full })
	if full < 0 {
		return g
	}
	folded := g
	folded.Pools = nil
	layers := slices.Clone(g.Pools[full].Layers)
	into := &g.Pools[full]
	for _, p := range g.Pools {
		if p.Role == SWA && p.WindowTokens >= requestTokens && p.KRowBytes == into.KRowBytes && p.VRowBytes == into.VRowBytes {
			layers = append(layers, p.Layers...)
			continue
		}
		folded.Pools = append(folded.Pools, p)
	}
	slices.Sort(layers)
	folded.Pools[slices.IndexFunc(folded.Pools, func(p Pool) bool { return p.Role == Full })].Layers = layers
	return folded
}

// shapes are bf16 unless said, one GPU (tensor parallel 1), from the models' public config.json files.
var shapes = []Geometry{
	{Name: "llama-3-8b", Layers: 32, Source: "meta-llama/Meta-Llama-3-8B: 32 layers, 8 KV heads of 128",
		Pools: []Pool{{Name: "full", Role: Full, Layers: layers(32, func(int) bool { return true }), KRowBytes: 8 * 128 * 2, VRowBytes: 8 * 128 * 2, Heads: 8}}},
	{Name: "llama-3-70b", Layers: 80, Source: "meta-llama/Meta-Llama-3-70B: 80 layers, 8 KV heads of 128",
		Pools: []Pool{{Name: "full", Role: Full, Layers: layers(80, func(int) bool { return true }), KRowBytes: 8 * 128 * 2, VRowBytes: 8 * 128 * 2, Heads: 8}}},
	{Name: "gemma-3-27b", Layers: 62, Source: "google/gemma-3-27b-it: 62 layers, every sixth global, window 1024, 16 KV heads of 128",
		Pools: []Pool{
			{Name: "full", Role: Full, Layers: layers(62, func(l int) bool { return l%6 == 5 }), KRowBytes: 16 * 128 * 2, VRowBytes: 16 * 128 * 2, Heads: 16},
			{Name: "swa", Role: SWA, Layers: layers(62, func(l int) bool { return l%6 != 5 }), KRowBytes: 16 * 128 * 2, VRowBytes: 16 * 128 * 2, WindowTokens: 1024, Heads: 16}}},
	{Name: "gpt-oss-20b", Layers: 24, Source: "openai/gpt-oss-20b: 24 layers, sliding and full alternate, window 128, 8 KV heads of 64",
		Pools: []Pool{
			{Name: "full", Role: Full, Layers: layers(24, func(l int) bool { return l%2 == 1 }), KRowBytes: 8 * 64 * 2, VRowBytes: 8 * 64 * 2, Heads: 8},
			{Name: "swa", Role: SWA, Layers: layers(24, func(l int) bool { return l%2 == 0 }), KRowBytes: 8 * 64 * 2, VRowBytes: 8 * 64 * 2, WindowTokens: 128, Heads: 8}}},
	{Name: "qwen3-next-80b", Layers: 48, Source: "Qwen/Qwen3-Next-80B-A3B: 48 layers, every fourth full (2 KV heads of 256), else gated delta net (32 value heads, 128 × 128 fp32; convolution 8192 × 3)",
		Pools: []Pool{
			{Name: "full", Role: Full, Layers: layers(48, func(l int) bool { return l%4 == 3 }), KRowBytes: 2 * 256 * 2, VRowBytes: 2 * 256 * 2, Heads: 2},
			{Name: "state", Role: State, Layers: layers(48, func(l int) bool { return l%4 != 3 }), KRowBytes: 32 * 128 * 128 * 4, VRowBytes: 8192 * 3 * 2}}},
	{Name: "deepseek-v3", Layers: 61, Source: "deepseek-ai/DeepSeek-V3: 61 layers, latent of 512 + 64, no V",
		Pools: []Pool{{Name: "full", Role: Full, Layers: layers(61, func(int) bool { return true }), KRowBytes: (512 + 64) * 2}}},
	{Name: "tri", Layers: 48, Source: "made up, to exercise three pools in one arena: 8 full, 24 sliding (window 1024), 16 recurrent",
		Pools: []Pool{
			{Name: "full", Role: Full, Layers: layers(48, func(l int) bool { return l%6 == 5 }), KRowBytes: 8 * 128 * 2, VRowBytes: 8 * 128 * 2, Heads: 8},
			{Name: "swa", Role: SWA, Layers: layers(48, func(l int) bool { return l%2 == 0 }), KRowBytes: 8 * 128 * 2, VRowBytes: 8 * 128 * 2, WindowTokens: 1024, Heads: 8},
			{Name: "state", Role: State, Layers: layers(48, func(l int) bool { return l%6 == 1 || l%6 == 3 }), KRowBytes: 16 * 128 * 128 * 4, VRowBytes: 4096 * 3 * 2}}},
}

func layers(n int, serves func(int) bool) []int {
	var ids []int
	for l := range n {
		if serves(l) {
			ids = append(ids, l)
		}
	}
	return ids
}

// Names lists the published shapes.
func Names() []string {
	var names []string
	for _, g := range shapes {
		names = append(names, g.Name)
	}
	return names
}

// Named returns a published shape at full size.
func Named(name string) (Geometry, error) {
	for _, g := range shapes {
		if g.Name == name {
			g.Pools, g.Scale = slices.Clone(g.Pools), 1
			return g, nil
		}
	}
	return Geometry{}, fmt.Errorf("geometry %q is not known: want one of %s", name, strings.Join(Names(), ", "))
}

// Scaled shrinks every row n-fold, rounded up to RowMultiple and never below it. Layers, pools, windows and pages stay as they are.
func (g Geometry) Scaled(n int) (Geometry, error) {
	if n < 1 {
		return Geometry{}, fmt.Errorf("scale %d: want 1 (as published) or more", n)
	}
	g.Pools = slices.Clone(g.Pools)
	shrink := func(row int64) int64 {
		if row == 0 {
			return 0
		}
		return max(RowMultiple, (row/int64(n)+RowMultiple-1)/RowMultiple*RowMultiple)
	}
	for i := range g.Pools {
		g.Pools[i].KRowBytes, g.Pools[i].VRowBytes = shrink(g.Pools[i].KRowBytes), shrink(g.Pools[i].VRowBytes)
	}
	g.Scale *= n
	return g, nil
}

// TokenBytes is what one token takes in the FULL pools.
func (g *Geometry) TokenBytes() int64 {
	sum := int64(0)
	for i := range g.Pools {
		if g.Pools[i].Role == Full {
			sum += g.Pools[i].TokenBytes()
		}
	}
	return sum
}

// Has says whether some pool has the role.
func (g *Geometry) Has(role Role) bool {
	return slices.ContainsFunc(g.Pools, func(p Pool) bool { return p.Role == role })
}

// Validate checks what a pool written by hand may get wrong.
func (g *Geometry) Validate() error {
	seen, fulls := map[string]bool{}, 0
	if len(g.Pools) == 0 || len(g.Pools) > 16 {
		return fmt.Errorf("geometry: %d pools, want 1 to 16", len(g.Pools))
	}
	for i := range g.Pools {
		p := &g.Pools[i]
		switch {
		case p.Name == "" || seen[p.Name]:
			return fmt.Errorf("pool %d: the name %q is empty or taken", i, p.Name)
		case len(p.Layers) == 0:
			return fmt.Errorf("pool %s: no layers", p.Name)
		case p.KRowBytes <= 0 || p.KRowBytes%RowMultiple != 0 || p.VRowBytes < 0 || p.VRowBytes%RowMultiple != 0:
			return fmt.Errorf("pool %s: rows of %d and %d bytes, want multiples of %d", p.Name, p.KRowBytes, p.VRowBytes, RowMultiple)
		case (p.Role == SWA) != (p.WindowTokens > 0):
			return fmt.Errorf("pool %s: role %s with a window of %d tokens", p.Name, p.Role, p.WindowTokens)
		}
		seen[p.Name] = true
		if p.Role == Full {
			fulls++
		}
	}
	if fulls != 1 {
		return fmt.Errorf("geometry: %d pools of role full, want one", fulls)
	}
	return nil
}
