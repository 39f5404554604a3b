// Package file is a storage backend in a folder: one file an object, in 4,096 sub-folders, written to a temporary name and renamed, with
// a header and a checksum over header and payload. Several processes may share a folder. A process that is killed loses at most the
// objects that it was writing; what is found damaged is removed and counted, never served.
package file

import (
	"cmp"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/hicache/hicache/gohicache/storage"
)

// Options of a store. The zero value bounds nothing.
type Options struct {
	// BytesMax bounds the files' sizes together; the objects that were used longest ago go first. 0: unbounded. Each process that shares the
	// folder bounds what it knows of.
	BytesMax int64
	// Sync makes every object durable before it counts as stored. Default: only a power cut can lose it.
	Sync bool
	// Workers is how many files of a batch are read or written at once. Default 4.
	Workers int
}

// Store is a storage.Store in a folder.
type Store struct {
	dir  string
	opt  Options
	init error // why the folder cannot be used

	mu    sync.Mutex
	index *index

	temp                                                 atomic.Uint64
	hits, misses, corrupt, evicted, evictedBytes         atomic.Int64
	readBytes, writeBytes, readErrors, putErrors, closed atomic.Int64
}

var _ storage.Store = (*Store)(nil)

const (
	formatFolder = "hicache-1"
	tempFolder   = "tmp"
	tempAge      = 10 * time.Minute // A temporary file that old was left by a process that is gone.
	touchAge     = 60               // Seconds after which a use renews the file's time, which orders the next process's evictions.
	evictBatch   = 16               // Objects that make room when the medium is full.
)

// New opens a store in a folder, made if need be. It does not fail: a folder that cannot be used shows in Ready and in every call, and a cache
// goes on without. Use Open to fail instead.
func New(dir string, options ...Options) *Store {
	s := &Store{dir: filepath.Join(dir, formatFolder), index: newIndex()}
	if len(options) > 0 {
		s.opt = options[0]
	}
	if s.opt.Workers <= 0 {
		s.opt.Workers = 4
	}
	s.init = s.prepare()
	return s
}

// Open is New that fails when the folder cannot be used.
func Open(dir string, o Options) (*Store, error) {
	s := New(dir, o)
	return s, s.Ready(context.Background())
}

// prepare makes the folders, removes what killed processes left, and reads what is there, oldest use first.
func (s *Store) prepare() error {
	if err := os.MkdirAll(filepath.Join(s.dir, tempFolder), 0o777); err != nil {
		return err
	}
	probe, err := os.CreateTemp(filepath.Join(s.dir, tempFolder), "probe-")
	if err != nil {
		return err
	}
	_ = probe.Close()
	_ = os.Remove(probe.Name())
	type object struct {
		key  storage.Key
		size int64
		time int64
	}
	var found []object
	err = filepath.WalkDir(s.dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			if path == s.dir {
				return err
			}
			return nil // another process removed it, or it is not ours to read
		}
		if d.IsDir() {
			return nil
		}
		info, err := d.Info()
		if err != nil {
			return nil
		}
		if filepath.Base(filepath.Dir(path)) == tempFolder {
			if time.Since(info.ModTime()) > tempAge {
				_ = os.Remove(path)
			}
			return nil
		}
		if key, ok := parseKey(d.Name()); ok {
			found = append(found, object{key, info.Size(), info.ModTime().UnixNano()})
		}
		return nil
	})
	if err != nil {
		return err
	}
	slices.SortFunc(found, func(a, b object) int { return cmp.Compare(a.time, b.time) })
	for _, o := range found {
		s.index.add(o.key, o.size, o.time/int64(time.Second))
	}
	s.shrink(0)
	return nil
}

func parseKey(name string) (key storage.Key, ok bool) {
	if len(name) != 2*len(key) {
		return key, false
	}
	_, err := hex.Decode(key[:], []byte(name))
	return key, err == nil
}

func (s *Store) path(key *storage.Key) string {
	name := hex.EncodeToString(key[:])
	return filepath.Join(s.dir, name[:3], name)
}

// Name is "file".
func (s *Store) Name() string { return "file" }

// Capabilities: one object a page, any size, shared.
func (s *Store) Capabilities() storage.Capabilities {
	return storage.Capabilities{OneObjectPerPage: true, Shared: true}
}

// Ready says whether the folder can be used.
func (s *Store) Ready(context.Context) error {
	if s.init != nil {
		return fmt.Errorf("%w: %v", storage.ErrUnavailable, s.init)
	}
	if s.closed.Load() != 0 {
		return fmt.Errorf("%w: the store is closed", storage.ErrUnavailable)
	}
	return nil
}

// Exists answers from the index; what the index lacks is looked for on disk, since another process may have written it, until something is
// really missing: callers look for runs.
func (s *Store) Exists(ctx context.Context, keys []storage.Key, found []bool) error {
	if err := s.Ready(ctx); err != nil {
		return err
	}
	looking := true
	for i := range keys {
		s.mu.Lock()
		_, found[i] = s.index.slots[keys[i]]
		s.mu.Unlock()
		if found[i] || !looking {
			continue
		}
		info, err := os.Stat(s.path(&keys[i]))
		if err != nil {
			looking = false
			continue
		}
		s.mu.Lock()
		s.index.add(keys[i], info.Size(), info.ModTime().Unix())
		s.mu.Unlock()
		found[i] = true
	}
	return ctx.Err()
}

// Get reads objects.
func (s *Store) Get(ctx context.Context, keys []storage.Key, dst [][]byte, errs []error) error {
	if err := s.Ready(ctx); err != nil {
		return err
	}
	s.each(len(keys), func(i int) {
		if errs[i] = ctx.Err(); errs[i] == nil {
			errs[i] = s.get(&keys[i], dst[i])
		}
	})
	return ctx.Err()
}

// each runs do for 0..n-1 on a few goroutines.
func (s *Store) each(n int, do func(i int)) {
	workers := min(s.opt.Workers, n)
	if workers <= 1 {
		for i := range n {
			do(i)
		}
		return
	}
	var next atomic.Int64
	var wg sync.WaitGroup
	for range workers {
		wg.Add(1)
		go func() {
			defer wg.Done()
			for i := next.Add(1) - 1; i < int64(n); i = next.Add(1) - 1 {
				do(int(i))
			}
		}()
	}
	wg.Wait()
}

func (s *Store) get(key *storage.Key, dst []byte) error {
	path := s.path(key)
	err := readObject(path, key, dst)
	switch {
	case err == nil:
		s.hits.Add(1)
		s.readBytes.Add(int64(len(dst)))
		s.used(key, path, int64(len(dst)))
		return nil
	case errors.Is(err, fs.ErrNotExist):
		s.misses.Add(1)
		s.forget(key)
		return fmt.Errorf("%w: %x", fs.ErrNotExist, key[:8])
	case errors.Is(err, storage.ErrCorrupt):
		s.corrupt.Add(1)
		s.forget(key)
		_ = os.Remove(path)
		return fmt.Errorf("%s: %w", path, err)
	}
	s.readErrors.Add(1)
	return err
}

// readObject reads and checks one file.
func readObject(path string, key *storage.Key, dst []byte) error {
	if info, err := os.Stat(path); err != nil {
		return err
	} else if !info.Mode().IsRegular() { // to open a pipe waits for its other end
		return fmt.Errorf("%w: %v", storage.ErrCorrupt, errStrange)
	}
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	var header [headerSize]byte
	if _, err = io.ReadFull(f, header[:]); err == nil {
		_, err = io.ReadFull(f, dst)
	}
	if errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.EOF) {
		err = fmt.Errorf("%w: %v", storage.ErrCorrupt, errShort)
	} else if err == nil {
		if bad := checkHeader(&header, key, dst); bad != nil {
			err = fmt.Errorf("%w: %v", storage.ErrCorrupt, bad)
		}
	}
	return err
}

// used makes an object the newest, and now and then says so to the file system, for the next process.
func (s *Store) used(key *storage.Key, path string, size int64) {
	now := time.Now()
	s.mu.Lock()
	found, renew := s.index.touch(*key, now.Unix(), touchAge)
	if !found {
		s.index.add(*key, size+headerSize, now.Unix())
	}
	s.mu.Unlock()
	if renew {
		_ = os.Chtimes(path, now, now)
	}
}

func (s *Store) forget(key *storage.Key) {
	s.mu.Lock()
	s.index.remove(*key)
	s.mu.Unlock()
}

// Put writes objects that are not there.
func (s *Store) Put(ctx context.Context, keys []storage.Key, src [][]byte, errs []error) error {
	if err := s.Ready(ctx); err != nil {
		return err
	}
	s.each(len(keys), func(i int) {
		if errs[i] = ctx.Err(); errs[i] == nil {
			errs[i] = s.put(&keys[i], src[i])
		}
	})
	return nil
}

func (s *Store) put(key *storage.Key, src []byte) error {
	size := int64(len(src)) + headerSize
	if s.opt.BytesMax > 0 && size > s.opt.BytesMax {
		return fmt.Errorf("%w: an object of %d bytes, the limit is %d", storage.ErrFull, size, s.opt.BytesMax)
	}
	s.mu.Lock()
	_, there := s.index.slots[*key]
	s.mu.Unlock()
	if there {
		return nil
	}
	s.shrink(size)
	err := s.writeObject(key, src)
	if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) {
		if s.evictOldest(evictBatch) > 0 {
			err = s.writeObject(key, src)
		}
		if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) {
			err = fmt.Errorf("%w: %v", storage.ErrFull, err)
		}
	}
	if err != nil {
		s.putErrors.Add(1)
		if _, gone := os.Stat(s.dir); gone != nil || errors.Is(err, syscall.EROFS) {
			return fmt.Errorf("%w: %v", storage.ErrUnavailable, err)
		}
		return err
	}
	s.writeBytes.Add(int64(len(src)))
	s.mu.Lock()
	s.index.add(*key, size, time.Now().Unix())
	s.mu.Unlock()
	return nil
}

// writeObject writes to a temporary file and renames it, so that a reader meets a whole object or none.
func (s *Store) writeObject(key *storage.Key, src []byte) (err error) {
	temp := filepath.Join(s.dir, tempFolder, strconv.Itoa(os.Getpid())+"-"+strconv.FormatUint(s.temp.Add(1), 36)+"-"+startTag)
	f, err := os.OpenFile(temp, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o666)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = f.Close() // closed already, or nothing can be done about it
			_ = os.Remove(temp)
		}
	}()
	var header [headerSize]byte
	putHeader(&header, key, src)
	if _, err = f.Write(header[:]); err != nil {
		return err
	}
	if _, err = f.Write(src); err != nil {
		return err
	}
	if s.opt.Sync {
		if err = f.Sync(); err != nil {
			return err
		}
	}
	if err = f.Close(); err != nil {
		return err
	}
	path := s.path(key)
	if err = os.Rename(temp, path); errors.Is(err, fs.ErrNotExist) {
		if err = os.MkdirAll(filepath.Dir(path), 0o777); err == nil {
			err = os.Rename(temp, path)
		}
	}
	return err
}

// startTag tells temporary files of two stores of one process apart, and of two processes with one number.
var startTag = strings.ToLower(strconv.FormatInt(time.Now().UnixNano(), 36))

// shrink evicts until size more bytes fit the limit.
func (s *Store) shrink(size int64) {
	for s.opt.BytesMax > 0 {
		s.mu.Lock()
		over := s.index.bytes+size > s.opt.BytesMax
		s.mu.Unlock()
		if !over || s.evictOldest(1) == 0 {
			return
		}
	}
}

// evictOldest removes up to n objects. One that cannot be removed is forgotten, so that it blocks nothing.
func (s *Store) evictOldest(n int) int {
	for i := range n {
		s.mu.Lock()
		key, ok := s.index.oldest()
		if !ok {
			s.mu.Unlock()
			return i
		}
		size, _ := s.index.remove(key)
		s.mu.Unlock()
		_ = os.Remove(s.path(&key))
		s.evicted.Add(1)
		s.evictedBytes.Add(size)
	}
	return n
}

// Stats of the store since it was opened.
func (s *Store) Stats() storage.Stats {
	s.mu.Lock()
	objects, bytes := int64(len(s.index.slots)), s.index.bytes
	s.mu.Unlock()
	return storage.Stats{Objects: objects, Bytes: bytes, Hits: s.hits.Load(), Misses: s.misses.Load(), Corrupt: s.corrupt.Load(),
		Evicted: s.evicted.Load(), EvictedBytes: s.evictedBytes.Load(), ReadBytes: s.readBytes.Load(), WriteBytes: s.writeBytes.Load(),
		ReadErrors: s.readErrors.Load(), PutErrors: s.putErrors.Load(), BytesMax: s.opt.BytesMax}
}

// Close ends the store; objects stay. A second Close does nothing.
func (s *Store) Close() error {
	s.closed.Store(1)
	return nil
}
