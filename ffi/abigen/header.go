package main

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
)

// Header is what the parser keeps of include/hicache.h, in the order of the header.
type Header struct {
	Constants []Constant
	Typedefs  []Typedef
	Structs   []Struct
	Functions []Function
}

// Constant is a #define with an integer value.
type Constant struct {
	Name   string // HICACHE_ROLE_FULL.
	Value  int64
	Signed bool // Written without the suffix u: a status.
	Doc    []string
}

// Typedef names a fixed-width integer (an id or the status).
type Typedef struct {
	Name string // hicache_vpage_t.
	Type string // uint32_t.
	Doc  []string
}

// Struct is a typedef'd struct. Opaque ones have no fields.
type Struct struct {
	Tag    string // hicache_take; the type is Tag + "_t".
	Fields []Field
	Doc    []string
	Opaque bool
}

// Field is one member. Type is the C type without the name: "const uint32_t *".
type Field struct {
	Name  string
	Type  string
	Array int // Elements of an array member, else 0.
	Doc   []string
}

// Function is an exported function.
type Function struct {
	Name   string
	Result string
	Params []Param
	Doc    []string
}

// Param is one parameter.
type Param struct {
	Name string
	Type string
}

var (
	sectionLine = regexp.MustCompile(`^// -{4} .* -{4,}$`)
	defineLine  = regexp.MustCompile(`^#define (HICACHE_[A-Z0-9_]+) (\(?-?(?:0x)?[0-9a-fA-F]+u?\)?)\s*(?://\s*(.*))?$`)
	typedefLine = regexp.MustCompile(`^typedef (u?int(?:8|16|32|64)_t) (hicache_[a-z0-9_]+_t);\s*(?://\s*(.*))?$`)
	opaqueLine  = regexp.MustCompile(`^typedef struct (hicache_[a-z0-9_]+) (hicache_[a-z0-9_]+)_t;$`)
	structLine  = regexp.MustCompile(`^typedef struct (hicache_[a-z0-9_]+) \{$`)
	structEnd   = regexp.MustCompile(`^\} (hicache_[a-z0-9_]+)_t;$`)
	fieldLine   = regexp.MustCompile(`^((?:const )?[a-z0-9_]+ \**)([a-z0-9_, \[\]]+);\s*(?://\s*(.*))?$`)
	paramText   = regexp.MustCompile(`^((?:const )?(?:char|void|[a-z0-9_]+_t) ?\**) ?([a-z0-9_]+)$`)
	funcText    = regexp.MustCompile(`^HICACHE_API ((?:const )?[a-z0-9_]+ \**)(hicache_[a-z0-9_]+)\((.*)\);$`)
)

// preamble are the lines of the header that say nothing about the ABI.
var preamble = map[string]bool{
	"#ifndef HICACHE_H_": true, "#define HICACHE_H_": true, "#include <stddef.h>": true, "#include <stdint.h>": true,
	"#if defined(_WIN32)": true, "#define HICACHE_API __declspec(dllexport)": true, "#else": true,
	`#define HICACHE_API __attribute__((visibility("default")))`: true, "#endif": true, "#ifdef __cplusplus": true,
	`extern "C" {`: true, `} // extern "C"`: true, "#endif // HICACHE_H_": true,
}

type parser struct {
	lines []string
	at    int
	doc   []string
	out   *Header
}

// Parse reads the header. It knows exactly the header's own style and refuses every line that it does not, by number: a declaration that
// is skipped in silence would be missing from every binding.
func Parse(text string) (*Header, error) {
	p := &parser{lines: strings.Split(text, "\n"), out: &Header{}}
	for p.at < len(p.lines) {
		start := p.at
		if err := p.step(); err != nil {
			return nil, fmt.Errorf("line %d: %w", start+1, err)
		}
	}
	if err := p.out.check(); err != nil {
		return nil, err
	}
	return p.out, nil
}

func (p *parser) next() string {
	line := strings.TrimRight(p.lines[p.at], " \t\r")
	p.at++
	return line
}

func (p *parser) takeDoc(trailing string) []string {
	doc := p.doc
	p.doc = nil
	if trailing != "" {
		doc = append(doc, trailing)
	}
	return doc
}

func (p *parser) step() error {
	line := p.next()
	switch {
	case line == "" || sectionLine.MatchString(line) || preamble[line]:
		p.doc = nil
	case strings.HasPrefix(line, "//"):
		p.doc = append(p.doc, strings.TrimPrefix(strings.TrimPrefix(line, "//"), " "))
	case strings.HasPrefix(line, "#define "):
		return p.define(line)
	case structLine.MatchString(line):
		return p.structure(structLine.FindStringSubmatch(line)[1])
	case opaqueLine.MatchString(line):
		m := opaqueLine.FindStringSubmatch(line)
		if m[1] != m[2] {
			return fmt.Errorf("struct %s has the type name %s_t", m[1], m[2])
		}
		p.out.Structs = append(p.out.Structs, Struct{Tag: m[1], Doc: p.takeDoc(""), Opaque: true})
	case typedefLine.MatchString(line):
		m := typedefLine.FindStringSubmatch(line)
		p.out.Typedefs = append(p.out.Typedefs, Typedef{Name: m[2], Type: m[1], Doc: p.takeDoc(m[3])})
	case strings.HasPrefix(line, "HICACHE_API "):
		return p.function(line)
	default:
		return fmt.Errorf("cannot read %q", line)
	}
	return nil
}

func (p *parser) define(line string) error {
	m := defineLine.FindStringSubmatch(line)
	if m == nil {
		return fmt.Errorf("cannot read %q: want #define HICACHE_NAME integer", line)
	}
	digits := strings.Trim(m[2], "()")
	unsigned := strings.HasSuffix(digits, "u")
	value, err := strconv.ParseInt(strings.TrimSuffix(digits, "u"), 0, 64)
	if err != nil {
		return fmt.Errorf("%s: %w", m[1], err)
	}
	// A doc comment above a run of defines belongs to its first; the trailing comment is the constant's own.
	p.out.Constants = append(p.out.Constants, Constant{Name: m[1], Value: value, Signed: !unsigned, Doc: p.takeDoc(m[3])})
	return nil
}

func (p *parser) structure(tag string) error {
	s := Struct{Tag: tag, Doc: p.takeDoc("")}
	var above []string
	for p.at < len(p.lines) {
		raw := p.next()
		line := strings.TrimSpace(raw)
		if m := structEnd.FindStringSubmatch(line); m != nil {
			if m[1] != tag {
				return fmt.Errorf("struct %s has the type name %s_t", tag, m[1])
			}
			if len(s.Fields) == 0 {
				return fmt.Errorf("struct %s has no fields", tag)
			}
			p.out.Structs = append(p.out.Structs, s)
			return nil
		}
		if text, ok := strings.CutPrefix(line, "//"); ok {
			if strings.HasPrefix(raw, "  //") || len(s.Fields) == 0 { // Of the field below.
				above = append(above, strings.TrimSpace(text))
				continue
			}
			last := &s.Fields[len(s.Fields)-1] // The comment of the field above goes on.
			last.Doc = append(last.Doc, strings.TrimSpace(text))
			continue
		}
		fields, err := parseFields(line)
		if err != nil {
			return fmt.Errorf("struct %s: %w", tag, err)
		}
		fields[0].Doc = append(above, fields[0].Doc...)
		above = nil
		s.Fields = append(s.Fields, fields...)
	}
	return fmt.Errorf("struct %s has no end", tag)
}

func parseFields(line string) ([]Field, error) {
	m := fieldLine.FindStringSubmatch(line)
	if m == nil {
		return nil, fmt.Errorf("cannot read the field %q", line)
	}
	var fields []Field
	for _, name := range strings.Split(m[2], ",") {
		name = strings.TrimSpace(name)
		f := Field{Type: strings.TrimSpace(m[1])}
		if m[3] != "" {
			f.Doc = []string{m[3]}
		}
		if open := strings.IndexByte(name, '['); open >= 0 {
			n, err := strconv.Atoi(strings.TrimSuffix(name[open+1:], "]"))
			if err != nil || n < 1 {
				return nil, fmt.Errorf("cannot read the array in %q", line)
			}
			name, f.Array = name[:open], n
		}
		f.Name = name
		fields = append(fields, f)
	}
	return fields, nil
}

func (p *parser) function(line string) error {
	text := line
	for !strings.HasSuffix(text, ";") {
		if p.at == len(p.lines) {
			return fmt.Errorf("%q has no end", line)
		}
		text += " " + strings.TrimSpace(p.next())
	}
	m := funcText.FindStringSubmatch(text)
	if m == nil {
		return fmt.Errorf("cannot read %q", text)
	}
	f := Function{Name: m[2], Result: strings.TrimSpace(m[1]), Doc: p.takeDoc("")}
	if m[3] != "void" {
		for _, param := range strings.Split(m[3], ",") {
			pm := paramText.FindStringSubmatch(strings.TrimSpace(param))
			if pm == nil {
				return fmt.Errorf("%s: cannot read the parameter %q", f.Name, param)
			}
			f.Params = append(f.Params, Param{Name: pm[2], Type: strings.TrimSpace(pm[1])})
		}
	}
	p.out.Functions = append(p.out.Functions, f)
	return nil
}

// check refuses duplicates and types that the header does not define.
func (h *Header) check() error {
	seen := map[string]bool{}
	once := func(kind, name string) error {
		if seen[kind+name] {
			return fmt.Errorf("%s %s is declared twice", kind, name)
		}
		seen[kind+name] = true
		return nil
	}
	for _, c := range h.Constants {
		if err := once("constant", c.Name); err != nil {
			return err
		}
	}
	for _, s := range h.Structs {
		if err := once("struct", s.Tag); err != nil {
			return err
		}
		for _, f := range s.Fields {
			if _, err := h.sizeOf(f.Type); err != nil {
				return fmt.Errorf("struct %s, field %s: %w", s.Tag, f.Name, err)
			}
		}
	}
	for _, f := range h.Functions {
		if err := once("function", f.Name); err != nil {
			return err
		}
		for _, p := range f.Params {
			if _, err := h.sizeOf(p.Type); err != nil {
				return fmt.Errorf("%s, parameter %s: %w", f.Name, p.Name, err)
			}
			if h.isStruct(p.Type) {
				return fmt.Errorf("%s: parameter %s passes a struct by value", f.Name, p.Name)
			}
		}
	}
	if len(h.Functions) == 0 {
		return fmt.Errorf("no functions")
	}
	return nil
}

func (h *Header) isStruct(ctype string) bool { return h.structOf(ctype) != nil }

// structOf is the struct that a by-value type names, or nil.
func (h *Header) structOf(ctype string) *Struct {
	for i := range h.Structs {
		if h.Structs[i].Tag+"_t" == ctype {
			return &h.Structs[i]
		}
	}
	return nil
}

// resolve follows typedefs down to a fixed-width type.
func (h *Header) resolve(ctype string) string {
	for _, t := range h.Typedefs {
		if t.Name == ctype {
			return t.Type
		}
	}
	return ctype
}
