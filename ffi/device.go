package ffi

// StampPages writes stamps into device pages with the device itself, or, with mismatches (as long as stamps), compares and counts the 8-byte
// words that differ. Runs on stream, behind the layer waits there; blocks until done. Salts: two a layer. CUDA only: else ErrUnsupported.
func (e *Engine) StampPages(pool uint32, stream uint64, stamps []Stamp, salts []uint64, mismatches []uint32) error {
	if mismatches != nil && len(mismatches) < len(stamps) {
		return invalid("stamp pages", "mismatches has room for %d pages, need %d", len(mismatches), len(stamps))
	}
	f := e.begin()
	if f == nil {
		return closed("stamp pages")
	}
	status := e.library.table.callStampPages(f, e.handle, pool, stream, data(stamps), count(len(stamps)), data(salts), count(len(salts)), data(mismatches), f.errorOut())
	return e.end(f, "stamp pages", status)
}

// LayerWord is the device address of a ticket's progress word and the value from which a layer is there, for a kernel that polls it
// (hicache_device.cuh). ErrUnsupported where the device is the host.
func (e *Engine) LayerWord(ticket Ticket, layer uint32) (address uint64, expected uint32, err error) {
	f := e.begin()
	if f == nil {
		return 0, 0, closed("layer word")
	}
	out := new(struct {
		address  uint64
		expected uint32
	})
	status := e.library.table.callLayerWord(f, e.handle, uint64(ticket), layer, ptr(&out.address), ptr(&out.expected), f.errorOut())
	return out.address, out.expected, e.end(f, "layer word", status)
}
