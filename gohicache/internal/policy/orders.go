package policy

import (
	"fmt"
	"sort"
	"strings"
)

// keyFunc is a policy that is nothing but a key.
type keyFunc struct {
	name string
	key  func(e *Entry, now uint64) Key
}

func (p keyFunc) Name() string                 { return p.name }
func (p keyFunc) Key(e *Entry, now uint64) Key { return p.key(e, now) }

// LRU gives up what was not used for longest.
func LRU() Policy {
	return keyFunc{"lru", func(e *Entry, _ uint64) Key { return Key{Hi: e.LastAccess} }}
}

// LFU gives up what was used least often, then longest ago.
func LFU() Policy {
	return keyFunc{"lfu", func(e *Entry, _ uint64) Key { return Key{uint64(e.Hits), e.LastAccess} }}
}

// FIFO gives up the oldest.
func FIFO() Policy {
	return keyFunc{"fifo", func(e *Entry, _ uint64) Key { return Key{Hi: e.Created} }}
}

// MRU gives up what was used last.
func MRU() Policy {
	return keyFunc{"mru", func(e *Entry, _ uint64) Key { return Key{Hi: ^e.LastAccess} }}
}

// FILO gives up the youngest.
func FILO() Policy {
	return keyFunc{"filo", func(e *Entry, _ uint64) Key { return Key{Hi: ^e.Created} }}
}

// SLRU keeps nodes with at least protect hits in a protected segment; each segment is LRU.
func SLRU(protect uint32) Policy {
	return keyFunc{"slru", func(e *Entry, _ uint64) Key {
		if e.Hits >= protect {
			return Key{1, e.LastAccess}
		}
		return Key{0, e.LastAccess}
	}}
}

// Priority gives up the lowest priority first, LRU within one. A priority whose retention time has passed counts as 0.
func Priority() Policy {
	return keyFunc{"priority", func(e *Entry, now uint64) Key {
		if e.Retain != 0 && now >= e.Retain {
			return Key{0, e.LastAccess}
		}
		return Key{uint64(e.Priority), e.LastAccess}
	}}
}

// TLRU serves the tail of latencies: a conversation whose next prompt would, even without this node, leave at most threshold tokens to
// compute is safe to lose it, so such nodes go first, LRU among themselves; then the rest, LRU. nextPrompt is the estimated length of the
// next turn. Tokens throughout.
func TLRU(threshold, nextPrompt int) Policy {
	return keyFunc{"tlru", func(e *Entry, _ uint64) Key {
		if e.Before >= max(e.History+nextPrompt-threshold, 0) {
			return Key{0, e.LastAccess}
		}
		return Key{1, e.LastAccess}
	}}
}

// Defaults of the policies that ByName builds.
const (
	DefaultProtect    = 2
	DefaultThreshold  = 2048 // tokens left to compute that a turn may cost
	DefaultNextPrompt = 512  // tokens
)

var byName = map[string]func() Policy{
	"auto": func() Policy { return NewAuto(AutoOptions{}) },
	"lru":  LRU, "lfu": LFU, "fifo": FIFO, "mru": MRU, "filo": FILO, "priority": Priority,
	"slru": func() Policy { return SLRU(DefaultProtect) },
	"tlru": func() Policy { return TLRU(DefaultThreshold, DefaultNextPrompt) },
}

// Names lists the policies that ByName knows, sorted.
func Names() []string {
	names := make([]string, 0, len(byName))
	for n := range byName {
		names = append(names, n)
	}
	sort.Strings(names)
	return names
}

// ByName returns a new policy with its default parameters. The error lists the names there are.
func ByName(name string) (Policy, error) {
	if f := byName[name]; f != nil {
		return f(), nil
	}
	return nil, fmt.Errorf("policy: no eviction policy %q; there are %s", name, strings.Join(Names(), ", "))
}
