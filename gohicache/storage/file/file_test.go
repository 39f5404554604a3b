package file

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/hicache/hicache/gohicache/storage"
)

var ctx = context.Background()

func keyOf(i int) (k storage.Key) {
	return sha256.Sum256(binary.LittleEndian.AppendUint64(nil, uint64(i)))
}

func payload(i, size int) []byte {
	b := make([]byte, size)
	r := rand.New(rand.NewPCG(uint64(i), 7))
	for j := range b {
		b[j] = byte(r.Uint32())
	}
	return b
}

func mustPut(t *testing.T, s *Store, i, size int) {
	t.Helper()
	if err := putOne(s, i, size); err != nil {
		t.Fatalf("put %d: %v", i, err)
	}
}

func putOne(s *Store, i, size int) error {
	errs := make([]error, 1)
	if err := s.Put(ctx, []storage.Key{keyOf(i)}, [][]byte{payload(i, size)}, errs); err != nil {
		return err
	}
	return errs[0]
}

func getOne(s *Store, i, size int) ([]byte, error) {
	dst, errs := make([]byte, size), make([]error, 1)
	if err := s.Get(ctx, []storage.Key{keyOf(i)}, [][]byte{dst}, errs); err != nil {
		return nil, err
	}
	return dst, errs[0]
}

func exists(t *testing.T, s *Store, keys ...int) []bool {
	t.Helper()
	found, list := make([]bool, len(keys)), make([]storage.Key, len(keys))
	for i, k := range keys {
		list[i] = keyOf(k)
	}
	if err := s.Exists(ctx, list, found); err != nil {
		t.Fatal(err)
	}
	return found
}

func TestRoundTripAndReopen(t *testing.T) {
	dir := t.TempDir()
	s, err := Open(dir, Options{})
	if err != nil {
		t.Fatal(err)
	}
	const n, size = 40, 3000
	keys, src, errs := make([]storage.Key, n), make([][]byte, n), make([]error, n)
	for i := range n {
		keys[i], src[i] = keyOf(i), payload(i, size)
	}
	if err := s.Put(ctx, keys, src, errs); err != nil || errors.Join(errs...) != nil {
		t.Fatal(err, errs)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s, err = Open(dir, Options{})
	if err != nil {
		t.Fatal(err)
	}
	dst := make([][]byte, n)
	for i := range dst {
		dst[i] = make([]byte, size)
	}
	if err := s.Get(ctx, keys, dst, errs); err != nil || errors.Join(errs...) != nil {
		t.Fatal(err, errs)
	}
	for i := range dst {
		if !bytes.Equal(dst[i], src[i]) {
			t.Fatalf("object %d differs", i)
		}
	}
	if st := s.Stats(); st.Objects != n || st.Bytes != n*(size+headerSize) || st.Hits != n || st.ReadBytes != n*size {
		t.Fatalf("stats %+v", st)
	}
	if _, err := getOne(s, n, size); !errors.Is(err, fs.ErrNotExist) {
		t.Fatalf("a missing object gave %v", err)
	}
}

// TestFlippedBit: any damaged byte, header or payload, is a miss that says so, and the object is gone afterwards.
func TestFlippedBit(t *testing.T) {
	dir := t.TempDir()
	s := New(dir)
	const size = 256
	for at := range headerSize + size {
		mustPut(t, s, at, size)
		key := keyOf(at)
		path := s.path(&key)
		raw, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		raw[at] ^= 1 << (at % 8)
		if err := os.WriteFile(path, raw, 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := getOne(s, at, size); !errors.Is(err, storage.ErrCorrupt) {
			t.Fatalf("byte %d flipped: got %v", at, err)
		}
		if exists(t, s, at)[0] {
			t.Fatalf("byte %d flipped: the object is still there", at)
		}
	}
	if st := s.Stats(); st.Corrupt != headerSize+size || st.Hits != 0 {
		t.Fatalf("stats %+v", st)
	}
}

// TestStrangeObjects: what is no file where an object should be is corrupt; a pipe, whose other end nobody opens, holds nobody.
func TestStrangeObjects(t *testing.T) {
	s := New(t.TempDir())
	for i, put := range []func(path string) error{
		func(p string) error { return syscall.Mkfifo(p, 0o600) },
		func(p string) error { return os.Mkdir(p, 0o700) },
		func(p string) error { return os.Symlink("/dev/zero", p) },
	} {
		mustPut(t, s, i, 500)
		key := keyOf(i)
		path := s.path(&key)
		if err := errors.Join(os.Remove(path), put(path)); err != nil {
			t.Fatal(err)
		}
		got := make(chan error, 1)
		go func() {
			_, err := getOne(s, i, 500)
			got <- err
		}()
		select {
		case err := <-got:
			if !errors.Is(err, storage.ErrCorrupt) {
				t.Errorf("case %d: %v", i, err)
			}
		case <-time.After(20 * time.Second):
			t.Fatalf("case %d: the read does not return", i)
		}
		mustPut(t, s, i, 500)
		if _, err := getOne(s, i, 500); err != nil {
			t.Errorf("case %d: put again: %v", i, err)
		}
	}
}

// TestTruncatedAndSwapped: a torn file, one of another length and one under another's name are corrupt.
func TestTruncatedAndSwapped(t *testing.T) {
	s := New(t.TempDir())
	for i, spoil := range []func(path string) error{
		func(p string) error { return os.Truncate(p, 0) },
		func(p string) error { return os.Truncate(p, headerSize-1) },
		func(p string) error { return os.Truncate(p, headerSize+100) },
		func(p string) error {
			mustPut(t, s, 99, 500)
			other := keyOf(99)
			return os.Rename(s.path(&other), p)
		},
	} {
		mustPut(t, s, i, 500)
		key := keyOf(i)
		if err := spoil(s.path(&key)); err != nil {
			t.Fatal(err)
		}
		if _, err := getOne(s, i, 500); !errors.Is(err, storage.ErrCorrupt) {
			t.Fatalf("case %d: %v", i, err)
		}
	}
	mustPut(t, s, 50, 500)
	if _, err := getOne(s, 50, 400); !errors.Is(err, storage.ErrCorrupt) {
		t.Fatalf("another length: %v", err)
	}
}

func TestSizeLimitEvictsOldestUse(t *testing.T) {
	const size = 1000
	s := New(t.TempDir(), Options{BytesMax: 4 * (size + headerSize)})
	for i := range 4 {
		mustPut(t, s, i, size)
	}
	if _, err := getOne(s, 0, size); err != nil { // 1 is the oldest now
		t.Fatal(err)
	}
	mustPut(t, s, 4, size)
	mustPut(t, s, 5, size)
	if got := fmt.Sprint(exists(t, s, 0, 1, 2, 3, 4, 5)); got != "[true false false true true true]" {
		t.Fatalf("held: %s", got)
	}
	if st := s.Stats(); st.Evicted != 2 || st.Bytes > st.BytesMax {
		t.Fatalf("stats %+v", st)
	}
	if err := putOne(s, 6, 5*size); !errors.Is(err, storage.ErrFull) {
		t.Fatalf("an object over the limit: %v", err)
	}
}

// TestReopenKeepsOrder: the next process evicts what was used longest ago, and a smaller limit shrinks the folder.
func TestReopenKeepsOrder(t *testing.T) {
	const size = 1000
	dir := t.TempDir()
	s := New(dir)
	for i := range 6 {
		mustPut(t, s, i, size)
		key := keyOf(i)
		at := time.Now().Add(time.Duration(i-10) * time.Hour)
		if err := os.Chtimes(s.path(&key), at, at); err != nil {
			t.Fatal(err)
		}
	}
	s = New(dir, Options{BytesMax: 4 * (size + headerSize)})
	if _, err := getOne(s, 2, size); err != nil {
		t.Fatal(err)
	}
	s = New(dir, Options{BytesMax: 2 * (size + headerSize)})
	if got := fmt.Sprint(exists(t, s, 0, 1, 2, 3, 4, 5)); got != "[false false true false false true]" {
		t.Fatalf("held: %s", got)
	}
}

// TestSharedFolder: what another process adds is found, what it removes is a miss.
func TestSharedFolder(t *testing.T) {
	dir := t.TempDir()
	a, b := New(dir), New(dir)
	mustPut(t, a, 1, 100)
	if !exists(t, b, 1)[0] {
		t.Fatal("an object of another store is not found")
	}
	if a.evictOldest(1) != 1 {
		t.Fatal("nothing evicted")
	}
	if _, err := getOne(b, 1, 100); !errors.Is(err, fs.ErrNotExist) {
		t.Fatalf("a removed object gave %v", err)
	}
	if b.Stats().Objects != 0 {
		t.Fatal("the removed object is still in the index")
	}
}

func TestUnusableFolder(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(file, Options{}); !errors.Is(err, storage.ErrUnavailable) {
		t.Fatalf("a file as folder: %v", err)
	}
	if err := putOne(New(file), 1, 10); !errors.Is(err, storage.ErrUnavailable) {
		t.Fatalf("put: %v", err)
	}
	dir := t.TempDir()
	s := New(dir)
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(dir, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := putOne(s, 1, 10); !errors.Is(err, storage.ErrUnavailable) {
		t.Fatalf("put into a folder that went: %v", err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if err := putOne(s, 1, 10); !errors.Is(err, storage.ErrUnavailable) {
		t.Fatalf("put after close: %v", err)
	}
}

// TestKilledWriter kills a process that writes, several times, and reads what it left: whole objects only, and no more than the batch in
// flight is missing.
func TestKilledWriter(t *testing.T) {
	if dir := os.Getenv("HICACHE_TEST_WRITER"); dir != "" {
		s := New(dir)
		for i := 0; ; i++ {
			if err := putOne(s, i, 20_000); err != nil {
				t.Fatal(err)
			}
			fmt.Println(i)
		}
	}
	for round := range 8 {
		dir := t.TempDir()
		writer := exec.Command(os.Args[0], "-test.run=^TestKilledWriter$")
		writer.Env = append(os.Environ(), "HICACHE_TEST_WRITER="+dir)
		var out bytes.Buffer
		writer.Stdout = &out
		if err := writer.Start(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Duration(20+13*round) * time.Millisecond)
		_ = writer.Process.Kill()
		_ = writer.Wait()
		acked := bytes.Count(out.Bytes(), []byte("\n"))
		s := New(dir)
		whole := 0
		for i := range int(s.Stats().Objects) {
			got, err := getOne(s, i, 20_000)
			if err != nil || !bytes.Equal(got, payload(i, 20_000)) {
				t.Fatalf("round %d: object %d of %d: %v", round, i, s.Stats().Objects, err)
			}
			whole++
		}
		if whole < acked || s.Stats().Corrupt != 0 {
			t.Fatalf("round %d: %d objects acknowledged, %d there, %d corrupt", round, acked, whole, s.Stats().Corrupt)
		}
	}
}

func TestManyGoroutines(t *testing.T) {
	s := New(t.TempDir(), Options{BytesMax: 30 * (500 + headerSize)})
	var wg sync.WaitGroup
	for g := range 8 {
		wg.Add(1)
		go func() {
			defer wg.Done()
			r := rand.New(rand.NewPCG(uint64(g), 1))
			for range 200 {
				i := r.IntN(50)
				if err := putOne(s, i, 500); err != nil {
					t.Error(err)
				}
				if got, err := getOne(s, r.IntN(50), 500); err != nil && !errors.Is(err, fs.ErrNotExist) {
					t.Error(err, len(got))
				}
			}
		}()
	}
	wg.Wait()
	if st := s.Stats(); st.Corrupt != 0 || st.Bytes > st.BytesMax || st.Evicted == 0 {
		t.Fatalf("stats %+v", st)
	}
}

func BenchmarkGet(b *testing.B) {
	s := New(b.TempDir())
	const size = 1 << 20
	dst := make([]byte, size)
	if err := putOne(s, 1, size); err != nil {
		b.Fatal(err)
	}
	keys, dsts, errs := []storage.Key{keyOf(1)}, [][]byte{dst}, make([]error, 1)
	b.SetBytes(size)
	for b.Loop() {
		if err := s.Get(ctx, keys, dsts, errs); err != nil || errs[0] != nil {
			b.Fatal(err, errs)
		}
	}
}

func BenchmarkPut(b *testing.B) {
	s := New(b.TempDir())
	const size, batch = 16 << 10, 64
	keys, srcs, errs := make([]storage.Key, batch), make([][]byte, batch), make([]error, batch)
	for i := range srcs {
		srcs[i] = payload(i, size)
	}
	b.SetBytes(size * batch)
	for n := 0; b.Loop(); n++ {
		for i := range keys {
			keys[i] = keyOf(n*batch + i)
		}
		if err := s.Put(ctx, keys, srcs, errs); err != nil || errs[0] != nil {
			b.Fatal(err, errs)
		}
	}
}
