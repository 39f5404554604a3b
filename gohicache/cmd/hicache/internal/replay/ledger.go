package replay

import (
	"fmt"
	"strings"

	"github.com/hicache/hicache/ffi/ids"
	"github.com/hicache/hicache/gohicache/cmd/hicache/internal/stamp"
)

// ledger remembers where pages were when they came to a tier, so that a check can tell that a page has moved since, and what happened to
// pages lately, so that a mismatch can be explained. It belongs to the run's goroutine.
type ledger struct {
	device [][]placed // by pool and virtual page
	host   [][]placed // by pool and host page
	events []event    // a ring
	count  int
}

// placed is the place that content had when it came to a tier.
type placed struct {
	digest stamp.Digest
	place  ids.PhysicalPage
}

type eventKind uint8

const (
	written eventKind = iota
	loaded
	reused
	relocated
)

func (k eventKind) String() string {
	return [...]string{"written", "loaded", "reused", "found moved"}[k]
}

type event struct {
	kind    eventKind
	pool    int
	virtual ids.VirtualPage
	place   ids.PhysicalPage
	request int
	digest  stamp.Digest
}

func newLedger(pools int) *ledger {
	return &ledger{device: make([][]placed, pools), host: make([][]placed, pools), events: make([]event, 1<<16)}
}

// entry is the record of a page name, which the table grows to hold; names are dense.
func entry(table *[]placed, name uint32) *placed {
	if int(name) >= len(*table) {
		*table = append(*table, make([]placed, int(name)+1-len(*table)+len(*table)/4)...)
	}
	return &(*table)[name]
}

func (l *ledger) note(e event) {
	l.events[l.count%len(l.events)] = e
	l.count++
}

// write notes that a request computes content into a page at a place.
func (l *ledger) write(pool int, v ids.VirtualPage, place ids.PhysicalPage, d stamp.Digest, request int) {
	*entry(&l.device[pool], uint32(v)) = placed{d, place}
	l.note(event{written, pool, v, place, request, d})
}

// reuse notes that a request found content in a page at a place, and says whether the page has changed its place since the content came
// to the device. Content that is not the ledger's came by a load, and this is its first place.
func (l *ledger) reuse(pool int, v ids.VirtualPage, place ids.PhysicalPage, d stamp.Digest, request int) bool {
	was := entry(&l.device[pool], uint32(v))
	switch {
	case was.digest != d:
		*was = placed{d, place}
		l.note(event{loaded, pool, v, place, request, d})
		return false
	case was.place != place:
		l.note(event{relocated, pool, v, place, request, d})
		return true
	}
	l.note(event{reused, pool, v, place, request, d})
	return false
}

// hosted notes where the host copy of content is, and says whether it has moved since it was first seen there.
func (l *ledger) hosted(pool int, h ids.HostPage, place ids.PhysicalPage, d stamp.Digest) bool {
	was := entry(&l.host[pool], uint32(h))
	if was.digest != d {
		*was = placed{d, place}
		return false
	}
	return was.place != place
}

// history writes the last events of a page, oldest first: those of its name and those of its content.
func (l *ledger) history(pool int, v ids.VirtualPage, d stamp.Digest) string {
	var b strings.Builder
	for k := max(0, l.count-len(l.events)); k < l.count; k++ {
		e := l.events[k%len(l.events)]
		if e.pool != pool || (e.virtual != v && e.digest != d) {
			continue
		}
		same := "the same content"
		if e.digest != d {
			same = fmt.Sprintf("other content (%016x)", uint64(e.digest))
		}
		fmt.Fprintf(&b, "    request %d: virtual page %d at physical page %d: %s, %s\n", e.request, e.virtual, e.place, e.kind, same)
	}
	if b.Len() == 0 {
		return "    none in the last " + fmt.Sprint(len(l.events)) + " events\n"
	}
	return b.String()
}
