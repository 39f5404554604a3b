package radix

// teach tells an adapting policy about an access. Matches call it under the shared lock, so it has a lock of its own.
func (t *Tree) teach(n *node, now uint64) {
	t.learnMu.Lock()
	t.describe(n, &t.learnEntry)
	n.feature.Store(t.learn.Touch(&t.learnEntry, now))
	t.learnMu.Unlock()
}

// forget tells an adapting policy that pages of n left the device.
func (t *Tree) forget(n *node, pages int) {
	if t.learn == nil || pages == 0 {
		return
	}
	t.learnMu.Lock()
	t.describe(n, &t.learnEntry)
	t.learn.Evicted(&t.learnEntry, pages, t.clock.Load())
	t.learnMu.Unlock()
}
