package radix

// slots is a table of records with generation-checked names. Guarded by Tree.mu held exclusively, except live, which shared holders may
// read.
type slots[T any] struct {
	items []*slotItem[T]
	free  []uint32
	live  int
}

type slotItem[T any] struct {
	gen  uint32
	used bool
	rec  T
}

// take returns a record as its last user left it, so that its slices are reused; the caller resets it.
func (s *slots[T]) take() (slot, gen uint32, rec *T) {
	if len(s.free) == 0 {
		s.items = append(s.items, &slotItem[T]{gen: 1})
		s.free = append(s.free, uint32(len(s.items)-1))
	}
	i := s.free[len(s.free)-1]
	s.free = s.free[:len(s.free)-1]
	it := s.items[i]
	it.used = true
	s.live++
	return i + 1, it.gen, &it.rec
}

// get returns the record of a name, or nil if it was put back.
func (s *slots[T]) get(slot, gen uint32) *T {
	if slot == 0 || int(slot) > len(s.items) {
		return nil
	}
	if it := s.items[slot-1]; it.used && it.gen == gen {
		return &it.rec
	}
	return nil
}

func (s *slots[T]) put(slot uint32) {
	it := s.items[slot-1]
	it.used = false
	it.gen++
	s.live--
	s.free = append(s.free, slot-1)
}
