package words

import (
	"bytes"
	"encoding/binary"
	"testing"
)

func TestBytes(t *testing.T) {
	for _, w := range [][]uint32{nil, {}, {1}, {0x01020304, 0xfffefdfc, 0}} {
		var want []byte
		for _, v := range w {
			want = binary.NativeEndian.AppendUint32(want, v)
		}
		if got := Bytes(w); !bytes.Equal(got, want) || cap(got) != len(want) {
			t.Errorf("%x: %x of %d, want %x", w, got, cap(got), want)
		}
		if little := binary.LittleEndian.AppendUint32(nil, 7); LittleEndian != bytes.Equal(little, Bytes([]uint32{7})) {
			t.Errorf("LittleEndian is %v", LittleEndian)
		}
	}
}
