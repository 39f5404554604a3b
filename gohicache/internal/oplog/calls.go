package oplog

import (
	"fmt"

	"github.com/hicache/hicache/ffi"
	"github.com/hicache/hicache/ffi/ids"
)

// step repeats one record.
func (r *Replayer) step(record *Record, c *cursor) error {
	e := r.Engine
	switch record.Kind {
	case KindAlloc, KindReserve:
		return r.take(record, c)
	case KindFree:
		frees := lines(c)
		return orCorrupt(c, func() error { return status(record, e.Free(frees)) })
	case KindExtend:
		return r.extend(record, c)
	case KindCancel:
		id := r.id(c)
		return status(record, r.ended(id, e.Cancel(ffi.Reservation(id))))
	case KindLoad, KindBackUp:
		return r.transfer(record, c)
	case KindCompletions:
		return r.completions(record, c)
	case KindLeaseAcquire:
		pages := lines(c)
		return orCorrupt(c, func() error {
			lease, err := e.LeaseAcquire(pages)
			return r.granted(record, c, KindLeaseAcquire, uint64(lease), err)
		})
	case KindLeaseRelease:
		id := r.id(c)
		return status(record, r.ended(id, e.LeaseRelease(ffi.Lease(id))))
	case KindStepOpen:
		stream, pages := c.wide(), lines(c)
		return orCorrupt(c, func() error {
			step, err := e.StepOpen(stream, pages)
			return r.granted(record, c, KindStepOpen, uint64(step), err)
		})
	case KindStepClose:
		id := r.id(c)
		return status(record, r.ended(id, e.StepClose(ffi.Step(id))))
	case KindBatchStep:
		return r.batchStep(record, c)
	case KindCompact:
		return r.compact(record, c)
	case KindSetCompaction:
		return status(record, e.SetCompaction(ffi.Compaction(c.word())))
	case KindResize:
		return status(record, e.Resize(c.wide()))
	case KindHostAlloc:
		return r.hostAlloc(record, c)
	case KindHostFree:
		frees := hostLines(c)
		return orCorrupt(c, func() error { return status(record, e.HostFree(frees)) })
	case KindHostView:
		pages := hostLines(c)
		return orCorrupt(c, func() error {
			if len(pages) != 1 {
				return different(record, "the number of lines", len(pages), 1)
			}
			lease, err := e.HostView(pages[0], make([][]byte, len(pages[0].Pages)))
			return r.granted(record, c, KindLeaseAcquire, uint64(lease), err)
		})
	}
	return fmt.Errorf("%w: record %d is of kind %s", ErrCorrupt, record.Number, record.Kind)
}

// orCorrupt makes a call only when its arguments could be read.
func orCorrupt(c *cursor, call func() error) error {
	if c.err != nil {
		return c.err
	}
	return call()
}

func (r *Replayer) take(record *Record, c *cursor) error {
	takes := r.takes(c)
	if c.err != nil {
		return c.err
	}
	if record.Kind == KindAlloc {
		if err := status(record, r.Engine.Alloc(takes)); err != nil {
			return err
		}
		return r.taken(record, c, takes)
	}
	reservation, err := r.Engine.Reserve(takes)
	if err := status(record, err); err != nil {
		return err
	}
	if err := r.taken(record, c, takes); err != nil {
		return err
	}
	return r.granted(record, c, KindReserve, uint64(reservation), err)
}

func (r *Replayer) hostAlloc(record *Record, c *cursor) error {
	takes := make([]ffi.HostPages, c.count(3))
	for i := range takes {
		takes[i].Pool = c.word()
		n := int(c.word())
		c.word()
		if record.Status == ffi.StatusOK && n > len(record.payload)/4 {
			c.fail(fmt.Sprintf("it says %d pages", n))
			return c.err
		}
		if info, err := r.Engine.PoolInfo(ffi.TierHost, takes[i].Pool); err == nil {
			n = min(n, int(info.PageCount)+1) // More is refused all the same.
		}
		takes[i].Pages = make([]ids.HostPage, n)
	}
	return orCorrupt(c, func() error {
		if err := status(record, r.Engine.HostAlloc(takes)); err != nil || record.Status < 0 {
			return err
		}
		for _, t := range takes {
			if err := samePages(record, c, t.Pages); err != nil {
				return err
			}
		}
		return nil
	})
}

// capacityMax bounds the arrays that a record can make this program allocate.
const capacityMax = 1 << 26

func sequences(c *cursor) []ffi.Sequence {
	out := make([]ffi.Sequence, c.count(6))
	for i := range out {
		n, room := int(c.word()), int(c.word())
		s := ffi.Sequence{Tokens: c.word(), NewTokens: c.word(), WindowTailTokens: c.word(), Flags: ffi.SequenceFlags(c.word())}
		pages := pageIDs[ids.VirtualPage](c, n)
		if room < n || room > capacityMax {
			c.fail(fmt.Sprintf("sequence %d has room for %d pages", i, room))
			return nil
		}
		s.Pages = append(make([]ids.VirtualPage, 0, room), pages...)
		out[i] = s
	}
	return out
}

func grown(record *Record, c *cursor, got []ffi.Sequence) error {
	if record.Status < 0 {
		return nil
	}
	for i := range got {
		n, tokens := int(c.word()), c.word()
		if c.err == nil && (n != len(got[i].Pages) || tokens != got[i].Tokens) {
			return different(record, fmt.Sprintf("sequence %d", i), fmt.Sprintf("%d pages of %d tokens", len(got[i].Pages), got[i].Tokens),
				fmt.Sprintf("%d of %d", n, tokens))
		}
		if err := samePages(record, c, got[i].Pages); err != nil {
			return err
		}
	}
	return nil
}

func (r *Replayer) extend(record *Record, c *cursor) error {
	owner, batch := c.word(), sequences(c)
	return orCorrupt(c, func() error {
		if err := status(record, r.Engine.Extend(owner, batch)); err != nil {
			return err
		}
		return grown(record, c, batch)
	})
}

func (r *Replayer) batchStep(record *Record, c *cursor) error {
	b := &ffi.Batch{OwnerPool: c.word(), Stream: c.wide(), Previous: ffi.Step(r.id(c)), Sequences: sequences(c)}
	b.Tables = make([]ffi.BatchTable, c.count(6))
	for i := range b.Tables {
		t := &b.Tables[i]
		t.Pool, t.Form, t.WindowTokens, t.RowPages = c.word(), ffi.TableForm(c.word()), c.word(), c.word()
		room, ragged := c.word(), c.word()
		if room > capacityMax {
			c.fail(fmt.Sprintf("table %d has room for %d ids", i, room))
			return c.err
		}
		t.IDs = make([]ids.KernelID, room)
		if ragged != 0 {
			t.Indptr = make([]int32, len(b.Sequences)+1)
		}
	}
	b.Pages = lines(c)
	return orCorrupt(c, func() error {
		step, err := r.Engine.BatchStep(b)
		if err := status(record, err); err != nil {
			return err
		}
		if !r.open(b.Previous) {
			delete(r.held, uint64(b.Previous))
		}
		if err := grown(record, c, b.Sequences); err != nil {
			return err
		}
		return r.granted(record, c, KindStepOpen, uint64(step), err)
	})
}

// open says whether a step is: a batch that is refused may have closed it or not.
func (r *Replayer) open(step ffi.Step) bool {
	_, err := r.Engine.KernelIDs(ffi.Holder(step), 0, ffi.GranularityPage, nil, nil)
	return err == nil
}

func (r *Replayer) transfer(record *Record, c *cursor) error {
	t := &ffi.Transfer{Priority: ffi.Class(c.word()), Reservation: ffi.Reservation(r.id(c)), After: ffi.Ticket(r.id(c))}
	t.Copies = make([]ffi.Copy, c.count(3))
	for i := range t.Copies {
		t.Copies[i] = ffi.Copy{Pool: c.word(), DevicePage: ids.VirtualPage(c.word()), HostPage: ids.HostPage(c.word())}
	}
	t.Binds = make([]ffi.Bind, c.count(2))
	for i := range t.Binds {
		t.Binds[i] = ffi.Bind{Pool: c.word(), VPage: ids.VirtualPage(c.word())}
	}
	return orCorrupt(c, func() error {
		if record.Kind == KindBackUp {
			ticket, err := r.Engine.BackUp(t)
			return r.granted(record, c, 0, uint64(ticket), err)
		}
		ticket, err := r.Engine.Load(t)
		return r.granted(record, c, 0, uint64(ticket), r.ended(uint64(t.Reservation), err))
	})
}

// completions ends the transfers whose end the log read here, and reads it.
func (r *Replayer) completions(record *Record, c *cursor) error {
	var got [1]ffi.Completion
	for range c.count(4) {
		ticket, want, pages := ffi.Ticket(r.id(c)), ffi.Status(c.word()), c.word()
		if c.err != nil {
			return c.err
		}
		if err := r.Engine.FaultFinish(ticket, want != ffi.StatusOK); err != nil {
			return different(record, fmt.Sprintf("ticket %#x", uint64(ticket)&(1<<idBits-1)), err, "a transfer under way")
		}
		n, err := r.Engine.CompletionPoll(got[:])
		if err != nil {
			return err
		}
		if n != 1 || got[0].Ticket != ticket || (got[0].Status == ffi.StatusOK) != (want == ffi.StatusOK) || got[0].PageCount != pages {
			return different(record, "the completion", fmt.Sprintf("%d of %#x (%v, %d pages)", n, uint64(got[0].Ticket)&(1<<idBits-1), got[0].Status, got[0].PageCount),
				fmt.Sprintf("%#x (%v, %d pages)", uint64(ticket)&(1<<idBits-1), want, pages))
		}
	}
	return nil
}

func (r *Replayer) compact(record *Record, c *cursor) error {
	budget := &ffi.CompactBudget{Tier: ffi.Tier(c.word()), PagesMax: c.word(), Pool: c.word()}
	budget.BytesMax = c.wide()
	return orCorrupt(c, func() error {
		got, err := r.Engine.Compact(budget)
		if err := status(record, err); err != nil {
			return err
		}
		want := [3]uint64{c.wide(), c.wide(), c.wide()}
		if record.Status == ffi.StatusOK && [3]uint64{got.MovedPages, got.BlockedPages, got.HolePages} != want {
			return different(record, "moved, blocked and hole pages", [3]uint64{got.MovedPages, got.BlockedPages, got.HolePages}, want)
		}
		return nil
	})
}
