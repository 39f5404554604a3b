package workload

import "github.com/hicache/hicache/gohicache/cmd/hicache/internal/trace"

const ragAbout = `Questions over a corpus of 4000 documents (Zipf 1.0; lengths lognormal, median 600 tokens, sigma 0.4, 100 to 2000). A prompt is one
system prompt of about 300 tokens, then 4 documents in retrieval order, then a question (lognormal, median 30, sigma 0.6, 5 to 300); the
answer is lognormal (median 150, sigma 0.7, 8 to 1024). One request in five follows up on a recent one: same documents, its question and
answer, and another question. Only what stands before the first difference can be shared. Arrivals are Poisson, 2 a second.`

const uniformAbout = `Independent requests: one of 64 prefixes (each equally likely; 0 to 2048 tokens, uniform), then tokens of its own up to a prompt
length that is uniform in 256 to 4096 tokens; answers are uniform in 16 to 256 tokens. Arrivals are Poisson, 10 a second. No recency, no
popularity: the floor for every policy.`

type rag struct {
	s       *stream
	atMS    float64
	system  text
	lengths []int
	popular zipf
	placed  map[placed][]uint64 // blocks of a document behind a given block: an id stands for a whole prefix
	recent  []text
}

type placed struct {
	parent   uint64
	document int
}

func newRAG(s *stream) stepper {
	r := &rag{s: s, system: s.shared(1, 300, 0, 300, 300)[0], popular: newZipf(4000, 1.0), placed: map[placed][]uint64{}}
	for range 4000 {
		b := s.Options.BlockTokens
		r.lengths = append(r.lengths, max(b, s.lognormal(600, 0.4, 100, 2000)/b*b))
	}
	return r
}

func (r *rag) next() *trace.Request {
	s := r.s
	r.atMS += s.rng.ExpFloat64() * 500
	var t text
	if len(r.recent) > 0 && s.rng.IntN(5) == 0 {
		t = r.recent[s.rng.IntN(len(r.recent))].fork(s)
	} else {
		t = r.system.fork(s)
		for range 4 {
			r.place(&t, r.popular.draw(s))
		}
	}
	question := s.lognormal(30, 0.6, 5, 300)
	t.grow(s, max(1, min(question, s.PromptTokensMax-t.tokens)))
	req := t.ask(s, r.atMS, "", min(s.lognormal(150, 0.7, 8, 1024), s.PromptTokensMax/4))
	if t.tokens < s.PromptTokensMax-s.Options.BlockTokens {
		if r.recent = append(r.recent, t); len(r.recent) > 32 {
			r.recent = r.recent[1:]
		}
	}
	return req
}

// place appends a document, as far as it fits; t ends at a block boundary before and after.
func (r *rag) place(t *text, document int) {
	room := (r.s.PromptTokensMax - t.tokens - r.s.Options.BlockTokens) / r.s.Options.BlockTokens * r.s.Options.BlockTokens
	n := min(r.lengths[document], room)
	if n <= 0 {
		return
	}
	key := placed{parent: t.ids[len(t.ids)-1], document: document}
	ids, ok := r.placed[key]
	if !ok {
		before := len(t.ids)
		t.grow(r.s, n)
		r.placed[key] = t.ids[before:len(t.ids):len(t.ids)]
		return
	}
	t.ids = append(t.ids, ids...)
	t.tokens += len(ids) * r.s.Options.BlockTokens
}

type uniform struct {
	s        *stream
	atMS     float64
	prefixes []text
}

func newUniform(s *stream) stepper {
	u := &uniform{s: s}
	for range 64 {
		var t text
		t.grow(s, s.rng.IntN(min(2048, s.PromptTokensMax/2)+1)/s.Options.BlockTokens*s.Options.BlockTokens)
		u.prefixes = append(u.prefixes, t)
	}
	return u
}

func (u *uniform) next() *trace.Request {
	s := u.s
	u.atMS += s.rng.ExpFloat64() * 100
	t := u.prefixes[s.rng.IntN(len(u.prefixes))].fork(s)
	lo := min(256, s.PromptTokensMax)
	length := lo + s.rng.IntN(min(4096, s.PromptTokensMax)-lo+1)
	t.grow(s, max(1, length-t.tokens))
	return t.ask(s, u.atMS, "", 16+s.rng.IntN(241))
}
