package radix

import "github.com/hicache/hicache/gohicache/internal/policy"

// admit tells an adapting policy about a request before any of its nodes is touched. It takes no lock but the policy's own.
func (t *Tree) admit(ns Namespace, tokens []uint32) policy.Ticket {
	if t.learn == nil {
		return policy.Ticket{}
	}
	r := policy.Request{Tokens: tokens, Namespace: ns.fold(), PageTokens: t.pt, Resident: int(t.ledgers[t.full].dev.Load())}
	t.learnMu.Lock()
	defer t.learnMu.Unlock()
	return t.learn.Admit(&r)
}

// ticketOf is the ticket of the request that p belongs to; false if there is no such request.
func (t *Tree) ticketOf(p Pin) (policy.Ticket, bool) {
	t.pinMu.Lock()
	defer t.pinMu.Unlock()
	if r := t.lookup(p); r != nil {
		return r.ticket, true
	}
	return policy.Ticket{}, false
}

// teach tells an adapting policy about an access. Matches call it under the shared lock, so it has a lock of its own.
func (t *Tree) teach(n *node, ticket policy.Ticket) {
	t.learnMu.Lock()
	t.describe(n, &t.learnEntry)
	n.policyMark.Store(t.learn.Touch(&t.learnEntry, ticket))
	t.learnMu.Unlock()
}

// pressure tells an adapting policy how much is on the device when some of it has to go.
func (t *Tree) pressure() {
	if t.learn == nil {
		return
	}
	t.learnMu.Lock()
	t.learn.Pressure(int(t.ledgers[t.full].dev.Load()) * t.cfg.PageTokens)
	t.learnMu.Unlock()
}

// fold is a number for a namespace, the same in every process (FNV-1a).
func (ns Namespace) fold() uint64 {
	h := uint64(14695981039346656037)
	for _, l := range [2]Label{ns.LoRA, ns.Salt} {
		if !l.Set {
			h = (h ^ 1<<8) * 1099511628211
			continue
		}
		for i := range len(l.Text) {
			h = (h ^ uint64(l.Text[i])) * 1099511628211
		}
		h = (h ^ 1<<9) * 1099511628211
	}
	return h
}
