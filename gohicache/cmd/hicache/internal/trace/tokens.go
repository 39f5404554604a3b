package trace

// Expander turns block ids into token ids: token i of block h is splitmix64(h·BlockTokens + i) mod Vocabulary, so equal blocks give equal
// tokens everywhere. Tokens that no block names (the tail of a prompt whose row rounds its blocks down, and answers of rows without
// output_hash_ids) are a function of (Seed, index of the request, position) and therefore shared with nobody.
type Expander struct {
	BlockTokens int
	Seed        uint64
}

// Prompt appends the prompt's InputTokens token ids to dst.
func (e Expander) Prompt(dst []uint32, r *Request) []uint32 {
	dst, left := e.appendBlocks(dst, r.Runs, r.InputTokens)
	return e.appendOwn(dst, r, r.InputTokens-left, left)
}

// PromptAsBlocks appends the prompt as whole blocks, BlockTokens for each id, whatever InputTokens says. This is the form in which
// block-level hit rates are defined.
func (e Expander) PromptAsBlocks(dst []uint32, r *Request) []uint32 {
	dst, _ = e.appendBlocks(dst, r.Runs, r.Blocks()*e.BlockTokens)
	return dst
}

// Output appends the answer's OutputTokens token ids to dst: the rest of the prompt's last block and the blocks of OutputRuns where the
// trace names them, else tokens of this request alone.
func (e Expander) Output(dst []uint32, r *Request) []uint32 {
	if r.OutputRuns == nil {
		return e.appendOwn(dst, r, r.InputTokens, r.OutputTokens)
	}
	left := r.OutputTokens
	if used := r.InputTokens % e.BlockTokens; used != 0 {
		last := r.Runs[len(r.Runs)-1]
		n := min(left, e.BlockTokens-used)
		dst = e.appendBlock(dst, last.First+last.Count-1, used, n)
		left -= n
	}
	dst, _ = e.appendBlocks(dst, r.OutputRuns, left)
	return dst
}

// appendBlocks appends up to limit tokens of the runs' blocks and returns how many of limit the blocks did not cover.
func (e Expander) appendBlocks(dst []uint32, runs []Run, limit int) ([]uint32, int) {
	for id := range idsOf(runs) {
		if limit == 0 {
			break
		}
		n := min(limit, e.BlockTokens)
		dst = e.appendBlock(dst, id, 0, n)
		limit -= n
	}
	return dst, limit
}

func (e Expander) appendBlock(dst []uint32, id uint64, from, n int) []uint32 {
	base := id*uint64(e.BlockTokens) + uint64(from)
	for i := range uint64(n) {
		dst = append(dst, uint32(splitmix64(base+i)%Vocabulary))
	}
	return dst
}

func (e Expander) appendOwn(dst []uint32, r *Request, from, n int) []uint32 {
	base := splitmix64(splitmix64(e.Seed^0x6f776e) + uint64(r.Index))
	for i := range uint64(n) {
		dst = append(dst, uint32(splitmix64(base+uint64(from)+i)%Vocabulary))
	}
	return dst
}

// splitmix64 is the finalizer of Steele, Lea and Flood, "Fast splittable pseudorandom number generators" (OOPSLA 2014).
func splitmix64(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}
