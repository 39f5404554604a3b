package geometry

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// PoolSyntax describes what ParsePool reads.
const PoolSyntax = "name=swa,role=swa,layers=0-9+12+20-40:2,row=2048,rows=2,window=1024"

// ParsePool reads a pool written by hand: comma-separated key=value pairs. layers is a sum of ids and ranges from-to[:step]; row is the
// bytes of a token's row in one layer and rows how many there are, 2 (K and V, the default) or 1; vrow gives the second row a size of its own.
func ParsePool(text string) (Pool, error) {
	p, rows := Pool{}, int64(2)
	given := map[string]bool{}
	for _, pair := range strings.Split(text, ",") {
		key, value, ok := strings.Cut(strings.TrimSpace(pair), "=")
		if !ok {
			return Pool{}, fmt.Errorf("pool %q: %q is not key=value: want %s", text, pair, PoolSyntax)
		}
		if given[key] {
			return Pool{}, fmt.Errorf("pool %q: %s is given twice", text, key)
		}
		given[key] = true
		var err error
		switch key {
		case "name":
			p.Name = value
		case "role":
			at := slices.Index([]string{"full", "swa", "state"}, value)
			if at < 0 {
				err = fmt.Errorf("is not full, swa or state")
			}
			p.Role = Role(at)
		case "layers":
			p.Layers, err = parseLayers(value)
		case "row":
			p.KRowBytes, err = strconv.ParseInt(value, 10, 32)
		case "vrow":
			p.VRowBytes, err = strconv.ParseInt(value, 10, 32)
		case "rows":
			if rows, err = strconv.ParseInt(value, 10, 32); err == nil && rows != 1 && rows != 2 {
				err = fmt.Errorf("is not 1 or 2")
			}
		case "window":
			p.WindowTokens, err = strconv.Atoi(value)
		default:
			return Pool{}, fmt.Errorf("pool %q: key %q is not known: want %s", text, key, PoolSyntax)
		}
		if err != nil {
			return Pool{}, fmt.Errorf("pool %q: %s %q: %w", text, key, value, err)
		}
	}
	if p.Name == "" {
		p.Name = p.Role.String()
	}
	if !given["vrow"] && rows == 2 {
		p.VRowBytes = p.KRowBytes
	}
	return p, nil
}

func parseLayers(text string) ([]int, error) {
	var ids []int
	for _, part := range strings.Split(text, "+") {
		span, stepText, stepped := strings.Cut(part, ":")
		fromText, toText, ranged := strings.Cut(span, "-")
		from, err := strconv.Atoi(fromText)
		to, step := from, 1
		if err == nil && ranged {
			to, err = strconv.Atoi(toText)
		}
		if err == nil && stepped {
			step, err = strconv.Atoi(stepText)
		}
		if err != nil || from < 0 || to < from || to > 4095 || step < 1 {
			return nil, fmt.Errorf("%q is not an id or a range from-to[:step] within 0-4095", part)
		}
		for l := from; l <= to; l += step {
			ids = append(ids, l)
		}
	}
	slices.Sort(ids)
	if len(slices.Compact(slices.Clone(ids))) != len(ids) {
		return nil, fmt.Errorf("a layer occurs twice")
	}
	return ids, nil
}

// ByHand makes a geometry of pools written by hand.
func ByHand(pools []Pool) (Geometry, error) {
	g := Geometry{Name: "by hand", Source: "--pool", Pools: pools, Scale: 1}
	for i := range pools {
		for _, l := range pools[i].Layers {
			g.Layers = max(g.Layers, l+1)
		}
	}
	return g, g.Validate()
}
