package script

import (
	"fmt"
	"regexp"
	"strconv"

	"github.com/hicache/hicache/ffi/ids"
)

// What a name of a script stands for.
type kind string

const (
	devicePages kind = "pages"
	hostPages   kind = "host pages"
	reservation kind = "reservation"
	ticket      kind = "ticket"
	lease       kind = "lease"
	step        kind = "step"
	sequence    kind = "sequence"
)

// A binding is what a name stands for: page ids by pool (device pages: by the pool that owns the ids), or the id of something held.
type binding struct {
	kind   kind
	pages  map[uint32][]uint32
	id     uint64
	tokens uint32   // Sequences only.
	copies []uint32 // Tickets only: pools with copies.
}

var namePattern = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_-]*$`)

// bindName gives a name a meaning; a name that is used again forgets what it was.
func (in *Interpreter) bindName(name string, b *binding) error {
	if !namePattern.MatchString(name) {
		return fmt.Errorf("%q cannot be a name: letters, digits, '_' and '-', not a digit first", name)
	}
	in.names[name] = b
	return nil
}

// held looks a name of one of the kinds up.
func (in *Interpreter) held(name string, kinds ...kind) (*binding, error) {
	b, ok := in.names[name]
	if !ok {
		return nil, fmt.Errorf("%q was never defined", name)
	}
	for _, k := range kinds {
		if b.kind == k {
			return b, nil
		}
	}
	return nil, fmt.Errorf("%q is a %s, not a %s", name, b.kind, kinds[0])
}

var slicePattern = regexp.MustCompile(`^([A-Za-z_][A-Za-z0-9_-]*)(?:\[(\d+)(?::(\d+))?\])?$`)

// pagesOf resolves words to page ids in order: a name, name[i], name[i:j] (j excluded), a number, a range a..b, or "none".
// table is the pool whose list a name is asked for: the owner of the ids on the device, the pool itself on the host.
func (in *Interpreter) pagesOf(words []string, table uint32, kinds ...kind) ([]uint32, error) {
	var pages []uint32
	for _, word := range words {
		if word == "none" {
			pages = append(pages, ids.None)
			continue
		}
		parts := slicePattern.FindStringSubmatch(word)
		if parts == nil {
			numbers, err := parseNumbers([]string{word})
			if err != nil {
				return nil, err
			}
			pages = append(pages, numbers...)
			continue
		}
		b, err := in.held(parts[1], kinds...)
		if err != nil {
			return nil, err
		}
		list, err := cut(b.pages[table], parts[2], parts[3])
		if err != nil {
			return nil, fmt.Errorf("%s: %w", word, err)
		}
		pages = append(pages, list...)
	}
	return pages, nil
}

// cut takes [first], [first:last) or all of a list.
func cut(list []uint32, first, last string) ([]uint32, error) {
	if first == "" {
		return list, nil
	}
	low, err := strconv.Atoi(first)
	if err != nil {
		return nil, err
	}
	high := low + 1
	if last != "" {
		if high, err = strconv.Atoi(last); err != nil {
			return nil, err
		}
	}
	if low > high || high > len(list) {
		return nil, fmt.Errorf("there are %d pages", len(list))
	}
	return list[low:high], nil
}

func virtualPages(numbers []uint32) []ids.VirtualPage {
	pages := make([]ids.VirtualPage, len(numbers))
	for i, n := range numbers {
		pages[i] = ids.VirtualPage(n)
	}
	return pages
}

func hostPagesOf(numbers []uint32) []ids.HostPage {
	pages := make([]ids.HostPage, len(numbers))
	for i, n := range numbers {
		pages[i] = ids.HostPage(n)
	}
	return pages
}

func plain[T ~uint32](pages []T) []uint32 {
	numbers := make([]uint32, len(pages))
	for i, p := range pages {
		numbers[i] = uint32(p)
	}
	return numbers
}
