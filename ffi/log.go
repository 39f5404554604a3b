package ffi

// LogStart records, from here on, every call that changes the engine's tables, with its arguments and its answer (docs/OPLOG.md). capacity
// (64 KiB to 4 GiB) is taken now; what does not fit ends the log with a mark, so drain it in time. ErrBusy unless the engine is as opened.
func (e *Engine) LogStart(capacity uint64) error {
	f := e.begin()
	if f == nil {
		return closed("log start")
	}
	return e.end(f, "log start", e.library.table.callLogStart(f, e.handle, capacity, f.errorOut()))
}

// LogDrain moves recorded bytes into buffer, whole records, oldest first, and returns how many; 0: there are none now. ErrInvalid with Need
// if the next record does not fit. For one goroutine.
func (e *Engine) LogDrain(buffer []byte) (int, error) {
	f := e.begin()
	if f == nil {
		return 0, closed("log drain")
	}
	f.out64 = 0
	status := e.library.table.callLogDrain(f, e.handle, data(buffer), uint64(len(buffer)), ptr(&f.out64), f.errorOut())
	n := int(f.out64)
	return n, e.end(f, "log drain", status)
}

// LogStop ends the log with a mark; what is recorded can still be drained.
func (e *Engine) LogStop() error {
	f := e.begin()
	if f == nil {
		return closed("log stop")
	}
	return e.end(f, "log stop", e.library.table.callLogStop(f, e.handle, f.errorOut()))
}

// FaultFinish runs the transfer of a ticket to its end now, held or not; with fails it fails. ErrUnsupported without fault injection.
func (e *Engine) FaultFinish(t Ticket, fails bool) error {
	f := e.begin()
	if f == nil {
		return closed("fault finish")
	}
	var mode uint32
	if fails {
		mode = 1
	}
	return e.end(f, "fault finish", e.library.table.callFaultFinish(f, e.handle, uint64(t), mode, f.errorOut()))
}
