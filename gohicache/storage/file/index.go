package file

import "github.com/hicache/hicache/gohicache/storage"

// index knows which objects the folder holds, in order of access. Every operation is O(1) and an object costs about 110 bytes.
type index struct {
	slots map[storage.Key]int32
	items []item // items[0] is the ring's head: next is the oldest, prev the newest
	free  []int32
	bytes int64
}

type item struct {
	key        storage.Key
	size       int64
	prev, next int32
	touched    int64 // Unix seconds of the last time that the file's own time was set
}

func newIndex() *index {
	return &index{slots: map[storage.Key]int32{}, items: make([]item, 1)}
}

func (x *index) link(i int32) {
	head := &x.items[0]
	x.items[i].prev, x.items[i].next = head.prev, 0
	x.items[head.prev].next = i
	x.items[0].prev = i
}

func (x *index) unlink(i int32) {
	it := x.items[i]
	x.items[it.prev].next, x.items[it.next].prev = it.next, it.prev
}

// add makes key the newest object; one that is there already is only touched.
func (x *index) add(key storage.Key, size, touched int64) {
	if i, ok := x.slots[key]; ok {
		x.bytes += size - x.items[i].size
		x.items[i].size = size
		x.unlink(i)
		x.link(i)
		return
	}
	var i int32
	if n := len(x.free); n > 0 {
		i, x.free = x.free[n-1], x.free[:n-1]
	} else {
		i = int32(len(x.items))
		x.items = append(x.items, item{})
	}
	x.items[i] = item{key: key, size: size, touched: touched}
	x.slots[key] = i
	x.bytes += size
	x.link(i)
}

// touch makes key the newest; it reports whether the file's own time is older than maxAge seconds, and then takes it for renewed.
func (x *index) touch(key storage.Key, now, maxAge int64) (found, renew bool) {
	i, ok := x.slots[key]
	if !ok {
		return false, false
	}
	x.unlink(i)
	x.link(i)
	if now-x.items[i].touched > maxAge {
		x.items[i].touched = now
		return true, true
	}
	return true, false
}

// remove forgets key and returns its size; false if it was not there.
func (x *index) remove(key storage.Key) (int64, bool) {
	i, ok := x.slots[key]
	if !ok {
		return 0, false
	}
	size := x.items[i].size
	x.unlink(i)
	delete(x.slots, key)
	x.items[i] = item{}
	x.free = append(x.free, i)
	x.bytes -= size
	return size, true
}

// oldest is the object that was used longest ago.
func (x *index) oldest() (storage.Key, bool) {
	i := x.items[0].next
	return x.items[i].key, i != 0
}
