// Package oplog reads operation logs of the engine (docs/OPLOG.md) and repeats them: every recorded call is made again on a fresh engine and
// its answer compared.
package oplog

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/hicache/hicache/ffi"
	"github.com/hicache/hicache/ffi/ids"
)

// Kind names the call that a record is of.
type Kind uint32

// Kinds, as the library numbers them.
const (
	KindOptions Kind = 1 + iota
	KindAlloc
	KindFree
	KindExtend
	KindReserve
	KindCancel
	KindLoad
	KindBackUp
	KindCompletions
	KindLeaseAcquire
	KindLeaseRelease
	KindStepOpen
	KindStepClose
	KindBatchStep
	KindCompact
	KindSetCompaction
	KindResize
	KindHostAlloc
	KindHostFree
	KindHostView
	KindEnd
)

var kindNames = [...]string{"", "options", "alloc", "free", "extend", "reserve", "cancel", "load", "back_up", "completions", "lease_acquire",
	"lease_release", "step_open", "step_close", "batch_step", "compact", "set_compaction", "resize", "host_alloc", "host_free", "host_view", "end"}

func (k Kind) String() string {
	if int(k) < len(kindNames) && k > 0 {
		return kindNames[k]
	}
	return fmt.Sprintf("kind %d", uint32(k))
}

// End says why a log ends.
type End uint32

// Ends.
const (
	EndNone    End = iota // It has no mark: the recording process ended first, or the file was cut between two records.
	EndStopped            // Recording was stopped.
	EndFull               // It was drained too late: what came after is lost.
)

func (e End) String() string { return [...]string{"without a mark", "stopped", "full"}[e] }

// Record is one call.
type Record struct {
	Number  uint32
	Kind    Kind
	Status  ffi.Status
	payload []byte
}

// Log is a parsed log.
type Log struct {
	ABI     uint32 // MAJOR << 16 | MINOR of the library that wrote it.
	Options ffi.Options
	Records []Record // Without the first (the options) and the mark.
	End     End
}

const (
	format       = 1
	headerBytes  = 32
	recordHeader = 20
)

var magic = []byte("HICALOG\x00")

// ErrCorrupt is what is wrong with a log that cannot be read.
var ErrCorrupt = errors.New("corrupt operation log")

func corrupt(at int, text string, args ...any) error {
	return fmt.Errorf("%w: byte %d: %s", ErrCorrupt, at, fmt.Sprintf(text, args...))
}

// Parse reads a whole log. Errors name the byte where it goes wrong.
func Parse(data []byte) (*Log, error) {
	if len(data) < headerBytes || !bytes.Equal(data[:8], magic) {
		return nil, corrupt(0, "no header: not an operation log, or cut")
	}
	word := func(at int) uint32 { return binary.LittleEndian.Uint32(data[at:]) }
	if word(8) != format || word(12) != headerBytes {
		return nil, corrupt(8, "format %d with a header of %d bytes; this program reads format %d", word(8), word(12), format)
	}
	log := &Log{ABI: word(16)}
	if log.ABI>>16 != ffi.ABIMajor {
		return nil, corrupt(16, "written by a library of ABI major %d, this program speaks %d", log.ABI>>16, ffi.ABIMajor)
	}
	for at, number := headerBytes, uint32(0); at < len(data); number++ {
		if log.End != EndNone {
			return nil, corrupt(at, "%d bytes after the mark of the end", len(data)-at)
		}
		if len(data)-at < recordHeader {
			return nil, corrupt(at, "record %d is cut: %d bytes are left", number, len(data)-at)
		}
		length := int(word(at))
		if length < recordHeader || length%4 != 0 {
			return nil, corrupt(at, "record %d has a length of %d", number, length)
		}
		if length > len(data)-at {
			return nil, corrupt(at, "record %d is cut: it has %d bytes, %d are left", number, length, len(data)-at)
		}
		body := data[at : at+length]
		if sum := checksum(body[8:]); sum != word(at+4) {
			return nil, corrupt(at, "record %d: checksum %08x, the record says %08x", number, sum, word(at+4))
		}
		r := Record{Number: word(at + 8), Kind: Kind(word(at + 12)), Status: ffi.Status(word(at + 16)), payload: body[recordHeader:]}
		if r.Number != number {
			return nil, corrupt(at, "record %d calls itself %d", number, r.Number)
		}
		switch {
		case r.Kind == 0 || r.Kind > KindEnd:
			return nil, corrupt(at, "record %d is of unknown kind %d", number, uint32(r.Kind))
		case (number == 0) != (r.Kind == KindOptions):
			return nil, corrupt(at, "record %d is of kind %s", number, r.Kind)
		case r.Kind == KindOptions:
			if err := log.readOptions(&r); err != nil {
				return nil, err
			}
		case r.Kind == KindEnd:
			c := cursor{record: &r}
			if log.End = End(c.word()); c.err != nil || log.End != EndStopped && log.End != EndFull {
				return nil, corrupt(at, "record %d: an unknown end", number)
			}
		default:
			log.Records = append(log.Records, r)
		}
		at += length
	}
	if log.Options.Pools == nil {
		return nil, corrupt(len(data), "no options: the log is cut")
	}
	return log, nil
}

// checksum is FNV-1a over 32-bit words.
func checksum(b []byte) uint32 {
	sum := uint32(0x811c9dc5)
	for ; len(b) >= 4; b = b[4:] {
		sum = (sum ^ binary.LittleEndian.Uint32(b)) * 0x01000193
	}
	return sum
}

func (l *Log) readOptions(r *Record) error {
	c := cursor{record: r}
	o := &l.Options
	o.DeviceBytes, o.DeviceBytesMax, o.HostBytes, o.HostBytesMax = c.wide(), c.wide(), c.wide(), c.wide()
	o.Backend, o.Compaction, o.Placement = ffi.Backend(c.word()), ffi.Compaction(c.word()), ffi.Placement(c.word())
	o.RequestTokensMax, o.TicketMax, o.ReservationMax, o.LeaseMax, o.StepMax = c.word(), c.word(), c.word(), c.word(), c.word()
	o.HeldPagesMax, o.TransferPagesMax = c.word(), c.word()
	o.Pools = make([]ffi.PoolOptions, c.count(18))
	for i := range o.Pools {
		p := &o.Pools[i]
		p.Role, p.Direction, p.PageTokens, p.WindowTokens = ffi.Role(c.word()), ffi.Direction(c.word()), c.word(), c.word()
		p.EnvelopeLayout, p.Zeroing, p.Flags, p.VirtualPageCount = ffi.EnvelopeLayout(c.word()), ffi.Zeroing(c.word()), ffi.PoolFlags(c.word()), c.word()
		p.HostLayout, p.HostPageCount, p.HeadCount = ffi.HostLayout(c.word()), c.word(), c.word()
		p.KRowBytes, p.VRowBytes, p.PageBytes = c.wide(), c.wide(), c.wide()
		p.LayerIDs = make([]uint32, c.count(1))
		for k := range p.LayerIDs {
			p.LayerIDs[k] = c.word()
		}
	}
	return c.end()
}

// cursor reads the words of a record. After an error it reads zeros.
type cursor struct {
	record *Record
	at     int
	err    error
}

func (c *cursor) word() uint32 {
	if c.err != nil || c.at+4 > len(c.record.payload) {
		c.fail("it ends early")
		return 0
	}
	c.at += 4
	return binary.LittleEndian.Uint32(c.record.payload[c.at-4:])
}

func (c *cursor) wide() uint64 {
	low := c.word()
	return uint64(c.word())<<32 | uint64(low)
}

// count reads how many things of at least so many words follow.
func (c *cursor) count(words int) int {
	n := int(c.word())
	if n*words > (len(c.record.payload)-c.at)/4 {
		c.fail(fmt.Sprintf("it says %d entries", n))
		return 0
	}
	return n
}

func (c *cursor) fail(why string) {
	if c.err == nil {
		c.err = fmt.Errorf("%w: record %d (%s): %s", ErrCorrupt, c.record.Number, c.record.Kind, why)
	}
}

func (c *cursor) end() error {
	if c.err == nil && c.at != len(c.record.payload) {
		c.fail(fmt.Sprintf("%d bytes too many", len(c.record.payload)-c.at))
	}
	return c.err
}

// pageIDs reads n ids of pages.
func pageIDs[T ids.VirtualPage | ids.HostPage](c *cursor, n int) []T {
	if n > (len(c.record.payload)-c.at)/4 {
		c.fail(fmt.Sprintf("it says %d pages", n))
		return nil
	}
	out := make([]T, n)
	for i := range out {
		out[i] = T(c.word())
	}
	return out
}
