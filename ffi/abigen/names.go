package main

import (
	"fmt"
	"regexp"
	"strings"
)

var reservedField = regexp.MustCompile(`^reserved[0-9]+$`)

// family says how a group of constants, and the fields that hold them, are typed in Go and Rust.
type family struct {
	prefix string // After HICACHE_; the rest of the name follows the Go type's name.
	goType string
	width  string // C type of what holds it.
	doc    string
}

// families in order of match: the first prefix that fits wins.
var families = []family{
	{"ABI_", "", "uint32_t", ""},
	{"ROLE_", "Role", "uint32_t", "Role says what a pool's pages hold."},
	{"DIRECTION_", "Direction", "uint32_t", "Direction says where in the arena's chain a pool lives."},
	{"LAYOUT_", "EnvelopeLayout", "uint32_t", "EnvelopeLayout orders the bytes inside a page envelope."},
	{"CALIBRATION_", "Calibration", "uint32_t", "Calibration says whether open measures how fast copies are."},
	{"CHOICE_", "ChoiceSource", "uint32_t", "ChoiceSource says where a choice of copy methods comes from."},
	{"COPY_", "CopyMethod", "uint32_t", "CopyMethod says how copies cross the bus."},
	{"HOST_", "HostLayout", "uint32_t", "HostLayout orders the bytes of a pool's pages in the host tier."},
	{"ZERO_", "Zeroing", "uint32_t", "Zeroing says what hand-out zeroes."},
	{"POOL_", "PoolFlags", "uint32_t", "PoolFlags are flags of a pool."},
	{"BACKEND_", "Backend", "uint32_t", "Backend names the memory and the copiers behind an engine."},
	{"COMPACTION_", "Compaction", "uint32_t", "Compaction says when pages move."},
	{"PLACEMENT_", "Placement", "uint32_t", "Placement says how pages are laid out in a pool's span."},
	{"SABOTAGE_", "Sabotage", "uint32_t", "Sabotage are deliberate faults."},
	{"TIER_", "Tier", "uint32_t", "Tier is one of the tiers that have an arena."},
	{"SEQUENCE_", "SequenceFlags", "uint32_t", "SequenceFlags are flags of one sequence of an extend."},
	{"CLASS_", "Class", "uint32_t", "Class is a transfer's priority."},
	{"GRANULARITY_", "Granularity", "uint32_t", "Granularity of kernel ids."},
	{"TABLE_", "TableForm", "uint32_t", "TableForm says how the page tables of a batch are laid out."},
	{"RECLAIM_", "Preference", "uint32_t", "Preference says which pools a reclaim plan spares."},
	{"PAGE_", "PageState", "uint8_t", "PageState is the state of one physical page, possibly with the flag PageStatePinned."},
	{"NO_PAGE", "", "uint32_t", ""},
	{"NO_POOL", "", "uint32_t", ""},
}

// goName is the exported Go name of a constant and its type ("" for untyped).
func goName(c Constant) (name, typ string) {
	rest := strings.TrimPrefix(c.Name, "HICACHE_")
	switch rest {
	case "H2D", "D2H":
		return "Transfer" + rest, "TransferDirection"
	case "ABI_MAJOR", "ABI_MINOR":
		return "ABI" + camel(strings.TrimPrefix(rest, "ABI_")), ""
	}
	if c.Signed {
		return "Status" + camel(rest), "Status"
	}
	for _, f := range families {
		if tail, ok := strings.CutPrefix(rest, f.prefix); ok && f.goType != "" {
			return f.goType + camel(tail), f.goType
		}
	}
	return camel(rest), ""
}

// fieldFamily types the fields that hold a constant of a family, by struct tag and field.
var fieldFamily = map[string]string{
	"hicache_pool_options.role":            "Role",
	"hicache_pool_options.direction":       "Direction",
	"hicache_pool_options.envelope_layout": "EnvelopeLayout",
	"hicache_options.copy_method":          "CopyMethod",
	"hicache_options.copy_calibration":     "Calibration",
	"hicache_copy_choice.method":           "CopyMethod",
	"hicache_copy_choice.source":           "ChoiceSource",
	"hicache_pool_options.host_layout":     "HostLayout",
	"hicache_pool_info.host_layout":        "HostLayout",
	"hicache_pool_options.zeroing":         "Zeroing",
	"hicache_pool_options.flags":           "PoolFlags",
	"hicache_options.backend":              "Backend",
	"hicache_options.compaction":           "Compaction",
	"hicache_options.placement":            "Placement",
	"hicache_options.sabotage":             "Sabotage",
	"hicache_pool_info.direction":          "Direction",
	"hicache_sequence.flags":               "SequenceFlags",
	"hicache_batch_table.form":             "TableForm",
	"hicache_transfer.priority":            "Class",
	"hicache_completion.direction":         "TransferDirection",
	"hicache_compact_budget.tier":          "Tier",
}

// goTypes are the Go types of the header's own integers.
var goTypes = map[string]string{
	"hicache_status_t": "Status", "hicache_lease_t": "Lease", "hicache_reservation_t": "Reservation", "hicache_ticket_t": "Ticket",
	"hicache_step_t": "Step", "hicache_vpage_t": "ids.VirtualPage", "hicache_ppage_t": "ids.PhysicalPage",
	"hicache_kernel_id_t": "ids.KernelID", "hicache_hpage_t": "ids.HostPage",
	"char": "byte", "uint8_t": "uint8", "int32_t": "int32", "uint32_t": "uint32", "int64_t": "int64", "uint64_t": "uint64", "size_t": "uintptr",
}

// initialisms keep their capitals in Go names.
var initialisms = map[string]string{
	"id": "ID", "ids": "IDs", "abi": "ABI", "vpage": "VPage", "vpages": "VPages", "hpage": "HPage", "hpages": "HPages",
	"h2d": "H2D", "d2h": "D2H", "k": "K", "v": "V", "fd": "FD", "ppm": "PPM", "cpu": "CPU", "cuda": "CUDA", "swa": "SWA", "ok": "OK",
}

// camel turns snake_case or UPPER_CASE into CamelCase.
func camel(snake string) string {
	var b strings.Builder
	for _, word := range strings.Split(strings.ToLower(snake), "_") {
		if word == "" {
			continue
		}
		if fixed, ok := initialisms[word]; ok {
			b.WriteString(fixed)
			continue
		}
		b.WriteString(strings.ToUpper(word[:1]) + word[1:])
	}
	return b.String()
}

// lowerCamel is camel with a small first word.
func lowerCamel(snake string) string {
	first, rest, _ := strings.Cut(snake, "_")
	return strings.ToLower(first) + camel(rest)
}

// hasPointer says whether a struct holds a C pointer, directly or in a member.
func (h *Header) hasPointer(s *Struct) bool {
	for _, f := range s.Fields {
		if isPointer(f.Type) {
			return true
		}
		if inner := h.structOf(f.Type); inner != nil && h.hasPointer(inner) {
			return true
		}
	}
	return false
}

// goStruct is the Go name of a struct: those without pointers are exported as they are; the others, and the error, are dressed by hand.
func (h *Header) goStruct(s *Struct) string {
	name := strings.TrimPrefix(s.Tag, "hicache_")
	if h.hasPointer(s) || s.Tag == "hicache_error" {
		return "abi" + camel(name)
	}
	return camel(name)
}

func (h *Header) goFieldType(s *Struct, f Field) string {
	if t, ok := fieldFamily[s.Tag+"."+f.Name]; ok {
		return t
	}
	t := h.goType(f.Type)
	if f.Array > 0 {
		return fmt.Sprintf("[%d]%s", f.Array, t)
	}
	return t
}

func (h *Header) goType(ctype string) string {
	if isPointer(ctype) {
		elem := strings.TrimSpace(strings.TrimSuffix(strings.TrimPrefix(ctype, "const "), "*"))
		if elem == "void" {
			return "uintptr" // Memory that is not Go's.
		}
		return "*" + h.goType(elem)
	}
	if s := h.structOf(ctype); s != nil {
		return h.goStruct(s)
	}
	if t, ok := goTypes[ctype]; ok {
		return t
	}
	panic("no Go type for " + ctype)
}

// goField is the Go name of a field; what the caller never sets or reads is unexported.
func goField(s *Struct, f Field, exported bool) string {
	if f.Name == "struct_size" || reservedField.MatchString(f.Name) || !exported {
		return lowerCamel(f.Name)
	}
	return camel(f.Name)
}
