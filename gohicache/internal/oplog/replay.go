package oplog

import (
	"errors"
	"fmt"
	"slices"

	"github.com/hicache/hicache/ffi"
	"github.com/hicache/hicache/ffi/ids"
)

// Mismatch is a recorded answer that the repeated call did not give.
type Mismatch struct {
	Record uint32
	Kind   Kind
	What   string
}

func (m *Mismatch) Error() string { return fmt.Sprintf("record %d (%s): %s", m.Record, m.Kind, m.What) }

// Replayer repeats a log on an engine of its own.
type Replayer struct {
	Engine *ffi.Engine // As far as the log has been repeated.

	log    *Log
	own    []bool // By pool: whether it hands out its own ids.
	serial uint64 // Of the engine, in place in its ids.
	held   map[uint64]Kind
}

// idBits are those of an id that a log has; above them is the engine's serial.
const idBits = 52

// Open opens an engine as the log says, on the null backend if it was recorded on a GPU. Copies run when the log read their end.
func Open(log *Log, library string) (*Replayer, error) {
	o := log.Options
	o.Library = library
	if o.Backend == ffi.BackendCUDA {
		o.Backend = ffi.BackendNull
	}
	o.Fault = ffi.FaultOptions{Enabled: 1, Hold: 1}
	e, err := ffi.Open(&o)
	if err != nil {
		return nil, err
	}
	r := &Replayer{Engine: e, log: log, held: map[uint64]Kind{}}
	for i := range o.Pools {
		info, err := e.PoolInfo(ffi.TierDevice, uint32(i))
		if err != nil {
			return nil, errors.Join(err, e.Close())
		}
		r.own = append(r.own, info.IDOwner == uint32(i))
	}
	return r, nil
}

// Run repeats all records. The error is a *Mismatch, or ErrCorrupt where a record cannot be.
func (r *Replayer) Run() error {
	for i := range r.log.Records {
		record := &r.log.Records[i]
		c := &cursor{record: record}
		if err := r.step(record, c); err != nil {
			return err
		}
		if err := c.end(); err != nil {
			return err
		}
	}
	return nil
}

// Close gives back what the log still holds and closes the engine.
func (r *Replayer) Close() error {
	var all []error
	for id, kind := range r.held {
		switch kind {
		case KindReserve:
			all = append(all, r.Engine.Cancel(ffi.Reservation(id)))
		case KindStepOpen:
			all = append(all, r.Engine.StepClose(ffi.Step(id)))
		default:
			all = append(all, r.Engine.LeaseRelease(ffi.Lease(id)))
		}
	}
	return errors.Join(append(all, r.Engine.Close())...)
}

// id is a recorded id in this engine.
func (r *Replayer) id(c *cursor) uint64 {
	id := c.wide()
	if id == 0 {
		return 0
	}
	return id | r.serial
}

// ended forgets what a call that worked has ended.
func (r *Replayer) ended(id uint64, err error) error {
	if err == nil {
		delete(r.held, id)
	}
	return err
}

func different(record *Record, what string, got, want any) error {
	return &Mismatch{record.Number, record.Kind, fmt.Sprintf("%s is %v, the log says %v", what, got, want)}
}

// status compares a call's status.
func status(record *Record, err error) error {
	got := ffi.StatusOK
	var e *ffi.Error
	if errors.As(err, &e) {
		got = e.Status
	} else if err != nil {
		return err
	}
	if got != record.Status {
		if err != nil {
			return different(record, "the status", err, record.Status)
		}
		return different(record, "the status", got, record.Status)
	}
	return nil
}

// granted compares the id that a call gave, of something that is held until it is ended.
func (r *Replayer) granted(record *Record, c *cursor, kind Kind, id uint64, err error) error {
	if err := status(record, err); err != nil || record.Status < 0 {
		return err
	}
	if want := c.wide(); id&(1<<idBits-1) != want {
		return different(record, "the id", fmt.Sprintf("%#x", id&(1<<idBits-1)), fmt.Sprintf("%#x", want))
	}
	if id != 0 {
		r.serial = id &^ (1<<idBits - 1)
		if kind != 0 {
			r.held[id] = kind
		}
	}
	return nil
}

func samePages[T ids.VirtualPage | ids.HostPage](record *Record, c *cursor, pages []T) error {
	if want := pageIDs[T](c, len(pages)); c.err == nil && !slices.Equal(pages, want) {
		return different(record, "what was granted", pages, want)
	}
	return c.err
}

func (r *Replayer) takes(c *cursor) []ffi.Take {
	takes := make([]ffi.Take, c.count(3))
	for i := range takes {
		t := &takes[i]
		t.Pool = c.word()
		n, given := c.word(), c.word()
		switch {
		case given != 0:
			t.Pages = pageIDs[ids.VirtualPage](c, int(n))
		case int(t.Pool) < len(r.own) && r.own[t.Pool] && c.record.Status == ffi.StatusOK:
			if int(n) > len(c.record.payload)/4 {
				c.fail(fmt.Sprintf("it says %d pages", n))
				return nil
			}
			t.Pages = make([]ids.VirtualPage, n)
		default:
			t.Count = n
			if int(t.Pool) < len(r.own) && r.own[t.Pool] {
				t.Pages = make([]ids.VirtualPage, min(n, r.poolPages(t.Pool)+1))
			}
		}
	}
	return takes
}

// poolPages bounds what a demand of a pool can sensibly ask for: more is refused all the same.
func (r *Replayer) poolPages(pool uint32) uint32 {
	info, err := r.Engine.PoolInfo(ffi.TierDevice, pool)
	if err != nil {
		return 0
	}
	return max(info.PageCount, info.VirtualPageCount)
}

func (r *Replayer) taken(record *Record, c *cursor, takes []ffi.Take) error {
	for _, t := range takes {
		if record.Status == ffi.StatusOK && r.own[t.Pool] {
			if err := samePages(record, c, t.Pages); err != nil {
				return err
			}
		}
	}
	return nil
}

func lines(c *cursor) []ffi.Pages {
	out := make([]ffi.Pages, c.count(2))
	for i := range out {
		out[i].Pool = c.word()
		out[i].Pages = pageIDs[ids.VirtualPage](c, int(c.word()))
	}
	return out
}

func hostLines(c *cursor) []ffi.HostPages {
	out := make([]ffi.HostPages, c.count(2))
	for i := range out {
		out[i].Pool = c.word()
		out[i].Pages = pageIDs[ids.HostPage](c, int(c.word()))
	}
	return out
}
