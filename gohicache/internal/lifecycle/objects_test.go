package lifecycle

import (
	"context"
	"errors"
	"io/fs"
	"slices"
	"testing"

	"github.com/hicache/hicache/ffi"
	"github.com/hicache/hicache/gohicache/internal/radix"
	"github.com/hicache/hicache/gohicache/storage"
)

// mapStore keeps objects by key, and in which order keys were asked for.
type mapStore struct {
	storage.Store
	objects map[storage.Key][]byte
	asked   []storage.Key
}

func (s *mapStore) Exists(_ context.Context, keys []storage.Key, found []bool) error {
	s.asked = slices.Clone(keys)
	for i, k := range keys {
		_, found[i] = s.objects[k]
	}
	return nil
}

func (s *mapStore) Get(_ context.Context, keys []storage.Key, dst [][]byte, errs []error) error {
	for i, k := range keys {
		object, ok := s.objects[k]
		if errs[i] = nil; !ok || copy(dst[i], object) != len(object) || len(dst[i]) != len(object) {
			errs[i] = fs.ErrNotExist
		}
	}
	return nil
}

func (s *mapStore) Put(_ context.Context, keys []storage.Key, src [][]byte, errs []error) error {
	for i, k := range keys {
		s.objects[k], errs[i] = slices.Clone(src[i]), nil
	}
	return nil
}

// TestObjectsOfAPage is the table of section F: which objects, in which order, a page is in each form; together they are the page, each byte once.
func TestObjectsOfAPage(t *testing.T) {
	mha := &Pool{Role: radix.Full, Layers: []uint32{0, 1, 2}, KRowBytes: 64, VRowBytes: 32, Heads: 4}
	mla := &Pool{Role: radix.Full, Layers: []uint32{0, 1, 2}, KRowBytes: 80}
	state := &Pool{Role: radix.State, Layers: []uint32{5}, KRowBytes: 256, VRowBytes: 64}
	const tokens = 4
	for _, c := range []struct {
		name      string
		pool      *Pool
		pageBytes uint64
		envelopes bool
		groups    int
		order     ffi.HostLayout
		tags      []string
		sizes     []uint64
	}{
		{"envelope", mha, 1152, true, 0, ffi.HostLayoutEnvelope, []string{""}, []uint64{1152}},
		{"envelope of latent rows", mla, 960, true, 0, ffi.HostLayoutEnvelope, []string{""}, []uint64{960}},
		{"MHA", mha, 1152, false, 0, ffi.HostLayoutPageFirstDirect, []string{"k", "v"}, []uint64{768, 384}},
		{"MHA, padded", mha, 1200, false, 0, ffi.HostLayoutPageFirstDirect, []string{"k", "v"}, []uint64{768, 432}},
		{"MLA", mla, 960, false, 0, ffi.HostLayoutPageFirstDirect, []string{"k"}, []uint64{960}},
		{"MLA, padded", mla, 1024, false, 0, ffi.HostLayoutPageFirstDirect, []string{"k"}, []uint64{1024}},
		{"MLA, which has no heads to split", mla, 960, false, 2, ffi.HostLayoutPageFirstDirect, []string{"k"}, []uint64{960}},
		{"state", state, 320, false, 2, ffi.HostLayoutPageFirstDirect, []string{"k", "v"}, []uint64{256, 64}},
		{"split heads, 2", mha, 1152, false, 2, ffi.HostLayoutPageHead, []string{"h0", "h1"}, []uint64{576, 576}},
		{"split heads, 4, padded", mha, 1168, false, 4, ffi.HostLayoutPageHead, []string{"h0", "h1", "h2", "h3"}, []uint64{288, 288, 288, 304}},
	} {
		f := formOf(c.pool, tokens, c.pageBytes, c.envelopes, c.groups)
		var tags []string
		var sizes []uint64
		covered := make([]int, c.pageBytes)
		for i := range f.parts {
			tags, sizes = append(tags, f.parts[i].tag), append(sizes, f.parts[i].size())
			for _, r := range f.parts[i].ranges {
				for b := r[0]; b < r[1]; b++ {
					covered[b]++
				}
			}
		}
		if f.order != c.order || !slices.Equal(tags, c.tags) || !slices.Equal(sizes, c.sizes) {
			t.Errorf("%s: order %d, objects %v of %v bytes", c.name, f.order, tags, sizes)
		}
		if slices.ContainsFunc(covered, func(n int) bool { return n != 1 }) {
			t.Errorf("%s: some byte of the page is not in exactly one object", c.name)
		}
		checkGrouping(t, c.name, f, c.pageBytes)
	}
}

// checkGrouping: keys go out page by page in the order of the objects; a page is there only with all of them, and comes back as it was.
func checkGrouping(t *testing.T, name string, f form, pageBytes uint64) {
	t.Helper()
	ctx, backend := context.Background(), &mapStore{objects: map[storage.Key][]byte{}}
	s := &pageStore{Store: backend, forms: []form{f}}
	const pages = 3
	keys, pools, src, dst := make([]storage.Key, pages), make([]int, pages), make([][]byte, pages), make([][]byte, pages)
	for i := range keys {
		keys[i][0] = byte(i + 1)
		src[i], dst[i] = make([]byte, pageBytes), make([]byte, pageBytes)
		for b := range src[i] {
			src[i][b] = byte(b*7 + i*31 + b/251)
		}
	}
	errs, found := make([]error, pages), make([]bool, pages)
	if err := s.put(ctx, pools, keys, src, errs); err != nil || errors.Join(errs...) != nil {
		t.Fatalf("%s: put: %v %v", name, err, errs)
	}
	if len(backend.objects) != pages*len(f.parts) {
		t.Fatalf("%s: %d objects for %d pages", name, len(backend.objects), pages)
	}
	if err := s.exists(ctx, pools, keys, found); err != nil || slices.Contains(found, false) {
		t.Fatalf("%s: exists: %v %v", name, found, err)
	}
	var want []storage.Key
	for _, key := range keys {
		for _, p := range f.parts {
			want = append(want, objectKey(key, p.tag))
		}
	}
	if !slices.Equal(backend.asked, want) {
		t.Fatalf("%s: keys in another order", name)
	}
	if err := s.get(ctx, pools, keys, dst, errs); err != nil || errors.Join(errs...) != nil {
		t.Fatalf("%s: get: %v %v", name, err, errs)
	}
	for i := range src {
		if !slices.Equal(src[i], dst[i]) {
			t.Fatalf("%s: page %d came back otherwise", name, i)
		}
	}
	// Without one of its objects, whichever, the second page is a miss, and its neighbours are not.
	for _, p := range f.parts {
		lost := objectKey(keys[1], p.tag)
		object := backend.objects[lost]
		delete(backend.objects, lost)
		if err := s.exists(ctx, pools, keys, found); err != nil || !slices.Equal(found, []bool{true, false, true}) {
			t.Fatalf("%s without %q: exists %v, %v", name, p.tag, found, err)
		}
		if err := s.get(ctx, pools, keys, dst, errs); err != nil || errs[0] != nil || !errors.Is(errs[1], fs.ErrNotExist) || errs[2] != nil {
			t.Fatalf("%s without %q: get %v, %v", name, p.tag, errs, err)
		}
		backend.objects[lost] = object
	}
}
