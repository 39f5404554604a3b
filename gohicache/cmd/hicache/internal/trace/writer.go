package trace

import (
	"bufio"
	"compress/gzip"
	"encoding/json"
	"io"
	"os"
	"strings"
)

// Writer writes rows in the form that Reader reads. It is for one goroutine at a time; nothing is complete before Close.
type Writer struct {
	out   *bufio.Writer
	zip   *gzip.Writer
	file  io.Closer
	block int
	first bool
}

// Create makes a trace file, compressed when its name ends in .gz. blockTokens is written into the first row.
func Create(path string, blockTokens int) (*Writer, error) {
	f, err := os.Create(path)
	if err != nil {
		return nil, err
	}
	w := &Writer{file: f, block: blockTokens, first: true}
	if strings.HasSuffix(path, ".gz") {
		w.zip = gzip.NewWriter(f)
		w.out = bufio.NewWriter(w.zip)
	} else {
		w.out = bufio.NewWriter(f)
	}
	return w, nil
}

// NewWriter writes uncompressed rows to out, which Close does not close.
func NewWriter(out io.Writer, blockTokens int) *Writer {
	return &Writer{out: bufio.NewWriter(out), block: blockTokens, first: true}
}

// Write appends one row.
func (w *Writer) Write(r *Request) error {
	row := struct {
		Timestamp    float64   `json:"timestamp"`
		InputLength  int       `json:"input_length"`
		OutputLength int       `json:"output_length"`
		Namespace    string    `json:"namespace,omitempty"`
		BlockTokens  int       `json:"block_tokens,omitempty"`
		HashIDs      []uint64  `json:"hash_ids"`
		OutputIDs    *[]uint64 `json:"output_hash_ids,omitempty"`
	}{Timestamp: r.TimestampMS, InputLength: r.InputTokens, OutputLength: r.OutputTokens, Namespace: r.Namespace, HashIDs: collect(r.Runs)}
	if w.first {
		row.BlockTokens, w.first = w.block, false
	}
	if r.OutputRuns != nil {
		ids := collect(r.OutputRuns)
		row.OutputIDs = &ids
	}
	line, err := json.Marshal(row)
	if err != nil {
		return err
	}
	_, err = w.out.Write(append(line, '\n'))
	return err
}

// collect never returns nil, so that an empty list is written as [] and not as null.
func collect(runs []Run) []uint64 {
	ids := make([]uint64, 0, countIDs(runs))
	for id := range idsOf(runs) {
		ids = append(ids, id)
	}
	return ids
}

// Close flushes and closes what Create opened, and reports the first error of either.
func (w *Writer) Close() error {
	err := w.out.Flush()
	if w.zip != nil {
		if e := w.zip.Close(); err == nil {
			err = e
		}
	}
	if w.file != nil {
		if e := w.file.Close(); err == nil {
			err = e
		}
	}
	return err
}
