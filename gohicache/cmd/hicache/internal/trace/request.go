// Package trace reads and writes request traces: one JSON object a line, as the Mooncake release publishes them. A row names the blocks of
// a prompt by id (equal id at equal position means equal prefix), so a trace holds no text and yet says exactly which prefixes are shared.
//
// Fields of a row: timestamp (ms), input_length and output_length (tokens), and either hash_ids (one id a block of the prompt) or runs
// ([[first, count], …], the same ids run-length coded). Three optional fields are ours: namespace (prefixes of two namespaces are never
// shared), block_tokens (the size of a block, in the first row) and output_hash_ids (the blocks that the answer goes on to fill, so that the
// next turn of a conversation finds the answer of this one in the cache).
package trace

import "iter"

// DefaultBlockTokens is the block size of the published traces.
const DefaultBlockTokens = 512

// Vocabulary bounds the token ids that Tokens makes.
const Vocabulary = 128000

// Run is Count consecutive block ids from First.
type Run struct {
	First, Count uint64
}

// Request is one row of a trace. The reader reuses nothing of it: a Request may be kept.
type Request struct {
	Index        int // place in the trace, from 0
	TimestampMS  float64
	Namespace    string
	InputTokens  int
	OutputTokens int
	Runs         []Run // blocks of the prompt, in order
	OutputRuns   []Run // blocks that the answer fills after the prompt's last one; nil when the trace does not say
}

// Blocks counts the prompt's blocks.
func (r *Request) Blocks() int { return countIDs(r.Runs) }

func countIDs(runs []Run) int {
	n := uint64(0)
	for _, run := range runs {
		n += run.Count
	}
	return int(n)
}

// IDs yields the block ids of the prompt in order.
func (r *Request) IDs() iter.Seq[uint64] { return idsOf(r.Runs) }

func idsOf(runs []Run) iter.Seq[uint64] {
	return func(yield func(uint64) bool) {
		for _, run := range runs {
			for i := range run.Count {
				if !yield(run.First + i) {
					return
				}
			}
		}
	}
}

// appendID adds an id to the end of runs, joining it to the last run where it continues it.
func appendID(runs []Run, id uint64) []Run {
	if n := len(runs); n > 0 && runs[n-1].First+runs[n-1].Count == id {
		runs[n-1].Count++
		return runs
	}
	return append(runs, Run{First: id, Count: 1})
}

// RunsOf codes ids as runs.
func RunsOf(ids []uint64) []Run {
	var runs []Run
	for _, id := range ids {
		runs = appendID(runs, id)
	}
	return runs
}

// Source gives requests in arrival order: a Reader, or a generator.
type Source interface {
	// Next returns the next request, io.EOF after the last one.
	Next() (*Request, error)
	// BlockTokens is the size of a block; final once the first request has been read.
	BlockTokens() int
	// Fraction says how much has been read, 0 to 1.
	Fraction() float64
	Close() error
}
