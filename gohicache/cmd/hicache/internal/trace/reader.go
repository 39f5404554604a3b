package trace

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
)

// Limits beyond which a row is refused as absurd rather than tried.
const (
	MaxLengthTokens = 1 << 24  // of a prompt or an answer
	maxLineBytes    = 64 << 20 // of a row
)

// Error says which row of which trace is wrong, and how. Field is empty when the row as a whole is.
type Error struct {
	File   string
	Line   int // from 1; 0 when the file as a whole is wrong
	Field  string
	Detail string
	Cause  error
}

func (e *Error) Error() string {
	s := "trace " + e.File
	if e.Line > 0 {
		s += fmt.Sprintf(": line %d", e.Line)
	}
	if e.Field != "" {
		s += ": field " + e.Field
	}
	return s + ": " + e.Detail
}

func (e *Error) Unwrap() error { return e.Cause }

// Reader reads a trace row by row and never holds more than one row. It is for one goroutine at a time.
type Reader struct {
	name        string
	file        *os.File
	counted     *countingReader
	size        int64
	in          *bufio.Reader
	line        int
	index       int
	block       int
	blockForced bool
	spill       []byte
}

type countingReader struct {
	r io.Reader
	n int64
}

func (c *countingReader) Read(p []byte) (int, error) {
	n, err := c.r.Read(p)
	c.n += int64(n)
	return n, err
}

// Open opens a trace, plain or gzip (told by its first bytes, not by its name). blockTokens 0 takes the first row's block_tokens, or
// DefaultBlockTokens where the rows do not say; any other value must agree with what the rows say.
func Open(path string, blockTokens int) (*Reader, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("trace: %w", err)
	}
	r := &Reader{name: path, file: f, counted: &countingReader{r: f}, block: blockTokens, blockForced: blockTokens != 0}
	if r.block == 0 {
		r.block = DefaultBlockTokens
	}
	if info, err := f.Stat(); err == nil {
		if info.IsDir() {
			f.Close()
			return nil, &Error{File: path, Detail: "is a folder, not a trace"}
		}
		r.size = info.Size()
	}
	r.in = bufio.NewReaderSize(r.counted, 1<<16)
	if magic, _ := r.in.Peek(2); bytes.Equal(magic, []byte{0x1f, 0x8b}) {
		z, err := gzip.NewReader(r.in)
		if err != nil {
			f.Close()
			return nil, &Error{File: path, Detail: "broken gzip header: " + err.Error(), Cause: err}
		}
		r.in = bufio.NewReaderSize(z, 1<<18)
	}
	return r, nil
}

// Close closes the file. A second call returns nil.
func (r *Reader) Close() error {
	if r.file == nil {
		return nil
	}
	err := r.file.Close()
	r.file = nil
	return err
}

// BlockTokens is the size of a block; final once the first row has been read.
func (r *Reader) BlockTokens() int { return r.block }

// Fraction says which part of the file has been read, 0 to 1; 0 when its size is unknown.
func (r *Reader) Fraction() float64 {
	if r.size <= 0 {
		return 0
	}
	return min(1, float64(r.counted.n)/float64(r.size))
}

// Next returns the next row, io.EOF after the last one, and an *Error for a row that is wrong or a trace without a single row.
func (r *Reader) Next() (*Request, error) {
	for {
		line, err := r.readLine()
		if errors.Is(err, io.EOF) {
			if r.index == 0 {
				return nil, &Error{File: r.name, Detail: "is empty: no request in it"}
			}
			return nil, io.EOF
		} else if err != nil {
			return nil, err
		}
		if line = bytes.TrimSpace(line); len(line) == 0 {
			continue
		}
		req, err := r.parse(line)
		if err != nil {
			return nil, err
		}
		req.Index = r.index
		r.index++
		return req, nil
	}
}

// readLine returns the next line; its bytes are valid until the next call.
func (r *Reader) readLine() ([]byte, error) {
	r.spill = r.spill[:0]
	r.line++
	for {
		part, err := r.in.ReadSlice('\n')
		switch {
		case err == nil && len(r.spill) == 0:
			return part, nil
		case len(r.spill)+len(part) > maxLineBytes:
			return nil, r.fail("", fmt.Sprintf("longer than %d MiB", maxLineBytes>>20), nil)
		}
		r.spill = append(r.spill, part...)
		switch {
		case err == nil, errors.Is(err, io.EOF) && len(r.spill) > 0:
			return r.spill, nil
		case errors.Is(err, io.EOF):
			return nil, io.EOF
		case !errors.Is(err, bufio.ErrBufferFull):
			return nil, r.fail("", "cannot be read: "+err.Error(), err)
		}
	}
}

func (r *Reader) fail(field, detail string, cause error) *Error {
	return &Error{File: r.name, Line: r.line, Field: field, Detail: detail, Cause: cause}
}

// row is the wire form. Pointers tell a field that is absent from one that is zero.
type row struct {
	Timestamp     *float64    `json:"timestamp"`
	InputLength   *float64    `json:"input_length"`
	OutputLength  *float64    `json:"output_length"`
	HashIDs       *[]uint64   `json:"hash_ids"`
	Runs          *[][]uint64 `json:"runs"`
	Namespace     string      `json:"namespace"`
	BlockTokens   *float64    `json:"block_tokens"`
	OutputHashIDs *[]uint64   `json:"output_hash_ids"`
}

func (r *Reader) parse(line []byte) (*Request, error) {
	var w row
	if err := json.Unmarshal(line, &w); err != nil {
		var wrong *json.UnmarshalTypeError
		if errors.As(err, &wrong) && wrong.Field != "" {
			return nil, r.fail(wrong.Field, "is "+wrong.Value+", want "+wanted[wrong.Field], err)
		} else if errors.As(err, &wrong) {
			return nil, r.fail("", "is JSON but not an object: "+excerpt(line), err)
		}
		return nil, r.fail("", "is not JSON: "+err.Error()+": "+excerpt(line), err)
	}
	if err := r.takeBlockTokens(w.BlockTokens); err != nil {
		return nil, err
	}
	if w.Timestamp == nil {
		return nil, r.fail("timestamp", "is missing", nil)
	}
	req := &Request{TimestampMS: *w.Timestamp, Namespace: w.Namespace}
	var err error
	if req.InputTokens, err = r.length("input_length", w.InputLength); err != nil {
		return nil, err
	}
	if req.OutputTokens, err = r.length("output_length", w.OutputLength); err != nil {
		return nil, err
	}
	if err := r.takeIDs(req, &w); err != nil {
		return nil, err
	}
	return req, r.takeOutputIDs(req, w.OutputHashIDs)
}

var wanted = map[string]string{
	"timestamp": "a number (milliseconds)", "input_length": "a whole number (tokens)", "output_length": "a whole number (tokens)",
	"hash_ids": "a list of block ids, whole numbers from 0", "runs": "a list of pairs [first, count], whole numbers from 0",
	"namespace": "a string", "block_tokens": "a whole number (tokens)", "output_hash_ids": "a list of block ids, whole numbers from 0",
}

func excerpt(line []byte) string {
	if len(line) > 60 {
		return fmt.Sprintf("%q…", line[:60])
	}
	return fmt.Sprintf("%q", line)
}

func (r *Reader) length(field string, v *float64) (int, error) {
	switch {
	case v == nil:
		return 0, r.fail(field, "is missing", nil)
	case *v < 0:
		return 0, r.fail(field, fmt.Sprintf("is negative (%v)", *v), nil)
	case *v != math.Trunc(*v):
		return 0, r.fail(field, fmt.Sprintf("is not a whole number (%v)", *v), nil)
	case *v > MaxLengthTokens:
		return 0, r.fail(field, fmt.Sprintf("is absurd (%.0f tokens; the limit is %d)", *v, MaxLengthTokens), nil)
	}
	return int(*v), nil
}

func (r *Reader) takeBlockTokens(v *float64) error {
	if v == nil {
		return nil
	}
	n, err := r.length("block_tokens", v)
	switch {
	case err != nil:
		return err
	case n == 0:
		return r.fail("block_tokens", "is 0", nil)
	case (r.blockForced || r.index > 0) && n != r.block:
		return r.fail("block_tokens", fmt.Sprintf("is %d, but %d was given before", n, r.block), nil)
	}
	r.block = n
	return nil
}

// takeIDs reads hash_ids or runs. A row may round its blocks up (the last one is partial) or down (the rest has no id).
func (r *Reader) takeIDs(req *Request, w *row) error {
	field := "hash_ids"
	switch {
	case w.HashIDs != nil && w.Runs != nil:
		return r.fail("runs", "stands beside hash_ids; a row has one of them", nil)
	case w.HashIDs != nil:
		req.Runs = RunsOf(*w.HashIDs)
	case w.Runs != nil:
		field = "runs"
		total := uint64(0)
		for _, p := range *w.Runs {
			if len(p) != 2 {
				return r.fail(field, fmt.Sprintf("has a run of %d numbers, want [first, count]", len(p)), nil)
			}
			if p[1] == 0 || p[1] > MaxLengthTokens || p[0] > math.MaxUint64-p[1] {
				return r.fail(field, fmt.Sprintf("has the run [%d, %d], want a count of 1 to %d", p[0], p[1], MaxLengthTokens), nil)
			}
			if total += p[1]; total > MaxLengthTokens {
				return r.fail(field, fmt.Sprintf("names more than %d blocks", MaxLengthTokens), nil)
			}
			req.Runs = append(req.Runs, Run{First: p[0], Count: p[1]})
		}
	default:
		return r.fail(field, "is missing, and so is runs", nil)
	}
	n, floor := req.Blocks(), req.InputTokens/r.block
	ceil := (req.InputTokens + r.block - 1) / r.block
	if n != floor && n != ceil {
		want := fmt.Sprint(floor)
		if ceil != floor {
			want += fmt.Sprintf(" or %d", ceil)
		}
		return r.fail(field, fmt.Sprintf("names %d blocks, but input_length %d in blocks of %d tokens needs %s", n, req.InputTokens, r.block, want), nil)
	}
	return nil
}

func (r *Reader) takeOutputIDs(req *Request, ids *[]uint64) error {
	if ids == nil {
		return nil
	}
	up := func(n int) int { return (n + r.block - 1) / r.block }
	if req.Blocks() != up(req.InputTokens) {
		return r.fail("output_hash_ids", "needs a prompt whose last block has an id", nil)
	}
	if want := up(req.InputTokens+req.OutputTokens) - up(req.InputTokens); len(*ids) != want {
		return r.fail("output_hash_ids", fmt.Sprintf("names %d blocks, but output_length %d after input_length %d fills %d new ones",
			len(*ids), req.OutputTokens, req.InputTokens, want), nil)
	}
	req.OutputRuns = RunsOf(*ids)
	if req.OutputRuns == nil {
		req.OutputRuns = []Run{} // told, and none needed
	}
	return nil
}
