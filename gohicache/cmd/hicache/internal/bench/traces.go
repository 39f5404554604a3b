package bench

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/hicache/hicache/gohicache/cmd/hicache/internal/trace"
)

// Files of the published traces.
const (
	conversation = "conversation.jsonl.gz"
	synthetic    = "synthetic.jsonl.gz"
	codingAgent  = "coding_agent_b512.jsonl.gz"
)

// DefaultTraces is where the traces are looked for: HICACHE_SHARED/traces, else ../shared/traces.
func DefaultTraces() string { return filepath.Join(sharedFolder(), "traces") }

// DefaultPeerScripts is where the peers' scripts are looked for.
func DefaultPeerScripts() string { return filepath.Join(sharedFolder(), "peers") }

func sharedFolder() string {
	if d := os.Getenv("HICACHE_SHARED"); d != "" {
		return d
	}
	return filepath.Join("..", "shared")
}

// eachRequest reads up to limit requests of a trace (0: all) in order.
func (s *Settings) eachRequest(file string, limit int, f func(*trace.Request, trace.Expander) error) error {
	path := filepath.Join(s.Traces, file)
	src, err := trace.Open(path, 0)
	if err != nil {
		return fmt.Errorf("trace (--traces FOLDER): %w", err)
	}
	defer src.Close()
	for n := 0; limit == 0 || n < limit; n++ {
		row, err := src.Next()
		if errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		if err := f(row, trace.Expander{BlockTokens: src.BlockTokens()}); err != nil {
			return err
		}
	}
	return nil
}

// prompts are the token ids of the first limit prompts, expanded before anything is timed. The peers' scripts make the same tokens.
func (s *Settings) prompts(file string, limit int) ([][]uint32, error) {
	var out [][]uint32
	err := s.eachRequest(file, limit, func(r *trace.Request, e trace.Expander) error {
		out = append(out, e.Prompt(make([]uint32, 0, r.InputTokens), r))
		return nil
	})
	return out, err
}

// blocks are the block ids of all prompts of a trace.
func (s *Settings) blocks(file string) ([][]uint32, error) {
	var out [][]uint32
	limit := scaled(s, 0, 500)
	err := s.eachRequest(file, limit, func(r *trace.Request, _ trace.Expander) error {
		ids := make([]uint32, 0, r.Blocks())
		for id := range r.IDs() {
			if id > 1<<32-1 {
				return fmt.Errorf("%s: block id %d is larger than 32 bits", file, id)
			}
			ids = append(ids, uint32(id))
		}
		out = append(out, ids)
		return nil
	})
	return out, err
}
