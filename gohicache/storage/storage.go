// Package storage is the interface of the third tier: where pages go that neither device nor host memory keeps.
//
// A store maps keys to objects. An object is the bytes of one page of one pool; its key names the model, the layout, the namespace, every
// token up to the page's end and the pool, so that equal keys mean equal bytes. A store neither orders nor interprets keys.
package storage

import (
	"context"
	"errors"
)

var (
	// ErrCorrupt: an object was there but its checksum, length or header did not fit. It counts as a miss and should be removed.
	ErrCorrupt = errors.New("storage: corrupt object")
	// ErrUnavailable: the store cannot be used at all (folder unreadable, server gone). The cache goes on without storage and says so.
	ErrUnavailable = errors.New("storage: unavailable")
	// ErrFull: the store, or the medium below it, has no room for the object.
	ErrFull = errors.New("storage: full")
)

// KeySize is the length of a key in bytes.
const KeySize = 32

// Key names an object.
type Key [KeySize]byte

// Capabilities say what a store can do, as data: the cache asks, never the store's type.
type Capabilities struct {
	// OneObjectPerPage: a page of a pool is stored and read as one object, so host memory may be one envelope arena.
	OneObjectPerPage bool
	// ObjectBytesMax is the largest object, 0 if unbounded.
	ObjectBytesMax int64
	// Shared: other processes may add and remove objects while the store is open.
	Shared bool
}

// Stats of a store since it was opened.
type Stats struct {
	Objects, Bytes        int64 // Held now, as far as the store knows.
	Hits, Misses          int64 // Of Get.
	Corrupt               int64 // Objects that failed their check.
	Evicted, EvictedBytes int64 // Given up to keep within the size limit.
	ReadBytes, WriteBytes int64 // Of payload.
	ReadErrors, PutErrors int64
	BytesMax              int64 // 0 if unbounded.
}

// Store is a backend of the third tier. All methods are safe for many goroutines. Batches hold any number of keys; an entry's failure does
// not end the batch. The context bounds waiting; a store should return soon after it ends.
type Store interface {
	// Name says what it is for logs and keys of reports: "file", "shm", ...
	Name() string
	Capabilities() Capabilities
	// Ready is nil, or ErrUnavailable with the reason why the store cannot be used. Asked once when a cache opens.
	Ready(ctx context.Context) error
	// Exists sets found[i] for each key. It may be answered from memory, and an object may be gone when it is read.
	Exists(ctx context.Context, keys []Key, found []bool) error
	// Get reads objects into dst[i] (each exactly the object's length) and sets errs[i]: nil, fs.ErrNotExist for a miss, ErrCorrupt, or an I/O
	// error; the content of dst[i] is undefined then. The returned error is for the batch as a whole.
	Get(ctx context.Context, keys []Key, dst [][]byte, errs []error) error
	// Put writes objects and sets errs[i]. An object that exists already is left as it is. After a crash an object is whole or absent.
	Put(ctx context.Context, keys []Key, src [][]byte, errs []error) error
	Stats() Stats
	// Close flushes and ends the store. It does not delete anything.
	Close() error
}
