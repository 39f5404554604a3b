package file

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/hicache/hicache/gohicache/storage"
	"github.com/zeebo/xxh3"
)

// An object is a file of a header and a payload. The header is little-endian:
//
//	 0  magic "HICACHE\n"
//	 8  uint32 version
//	12  uint32 header length
//	16  key, 32 bytes: it digests model, layout, namespace and tokens, so that a file copied to another name is noticed
//	48  uint64 payload length
//	56  8 bytes 0
//	64  xxh3-128 of bytes [0, 64) and of the payload, 16 bytes
const (
	magic         = "HICACHE\n"
	formatVersion = 1
	headerSize    = 80
	checkedSize   = 64
)

// putHeader writes the header of an object.
func putHeader(h *[headerSize]byte, key *storage.Key, payload []byte) {
	clear(h[:])
	copy(h[:], magic)
	binary.LittleEndian.PutUint32(h[8:], formatVersion)
	binary.LittleEndian.PutUint32(h[12:], headerSize)
	copy(h[16:48], key[:])
	binary.LittleEndian.PutUint64(h[48:], uint64(len(payload)))
	sum := checksum(h, payload)
	copy(h[checkedSize:], sum[:])
}

func checksum(h *[headerSize]byte, payload []byte) [16]byte {
	hash := xxh3.New()
	hash.Write(h[:checkedSize])
	hash.Write(payload)
	return hash.Sum128().Bytes()
}

var (
	errShort   = errors.New("shorter than its header says")
	errStrange = errors.New("no regular file")
)

// checkHeader says what is wrong with the header of an object that was read whole.
func checkHeader(h *[headerSize]byte, key *storage.Key, payload []byte) error {
	switch {
	case string(h[:8]) != magic:
		return errors.New("no magic number")
	case binary.LittleEndian.Uint32(h[8:]) != formatVersion || binary.LittleEndian.Uint32(h[12:]) != headerSize:
		return fmt.Errorf("version %d", binary.LittleEndian.Uint32(h[8:]))
	case storage.Key(h[16:48]) != *key:
		return errors.New("the key in it is another")
	case binary.LittleEndian.Uint64(h[48:]) != uint64(len(payload)):
		return fmt.Errorf("payload of %d bytes, expected %d", binary.LittleEndian.Uint64(h[48:]), len(payload))
	case checksum(h, payload) != [16]byte(h[checkedSize:headerSize]):
		return errors.New("checksum does not fit")
	}
	return nil
}
