package stamp

import "encoding/binary"

// A stream of words: word i of seed s is scramble(s + i·step). Both steps of scramble are bijections, so two streams agree in a word only
// if their counters do. It is made to run at memory speed, not to be random.
const (
	step  = 0x9e3779b97f4a7c15
	scale = 0xbf58476d1ce4e5b9
)

func scramble(x uint64) uint64 { return (x ^ x>>32) * scale }

// fill writes the words from index first on; len(dst) is a multiple of 8.
func fill(dst []byte, seed uint64, first int) {
	x := seed + uint64(first)*step
	for len(dst) >= 32 {
		binary.LittleEndian.PutUint64(dst[0:8], scramble(x))
		binary.LittleEndian.PutUint64(dst[8:16], scramble(x+step))
		binary.LittleEndian.PutUint64(dst[16:24], scramble(x+step*2&(1<<64-1)))
		binary.LittleEndian.PutUint64(dst[24:32], scramble(x+step*3&(1<<64-1)))
		x += step * 4 & (1<<64 - 1)
		dst = dst[32:]
	}
	for len(dst) >= 8 {
		binary.LittleEndian.PutUint64(dst, scramble(x))
		x += step
		dst = dst[8:]
	}
}

// differs returns the offset of the first 8-byte word that is not what fill would write, -1 if there is none.
func differs(src []byte, seed uint64, first int) int {
	x, at := seed+uint64(first)*step, 0
	for len(src)-at >= 32 {
		s := src[at : at+32]
		d := binary.LittleEndian.Uint64(s[0:8]) ^ scramble(x)
		d |= binary.LittleEndian.Uint64(s[8:16]) ^ scramble(x+step)
		d |= binary.LittleEndian.Uint64(s[16:24]) ^ scramble(x+step*2&(1<<64-1))
		d |= binary.LittleEndian.Uint64(s[24:32]) ^ scramble(x+step*3&(1<<64-1))
		if d != 0 {
			break
		}
		x += step * 4 & (1<<64 - 1)
		at += 32
	}
	for ; len(src)-at >= 8; at += 8 {
		if binary.LittleEndian.Uint64(src[at:]) != scramble(x) {
			return at
		}
		x += step
	}
	return -1
}
