package ffi

import (
	"bytes"
	"errors"
	"strings"
	"testing"

	"github.com/hicache/hicache/ffi/ids"
)

func TestHandOver(t *testing.T) {
	a, b := open(t, testOptions()), open(t, testOptions())
	takeBoth(t, b, 3) // names and places differ
	from, to := takeBoth(t, a, testPages), takeBoth(t, b, testPages)
	held, err := a.LeaseAcquire(both(from))
	if err != nil {
		t.Fatal(err)
	}
	for pool := range uint32(2) {
		for i, page := range from {
			for at, bytes := 0, envelope(t, a, held, pool, page); at < len(bytes); at++ {
				bytes[at] = stamp(pool, i, at)
			}
		}
	}
	request := HandOver{Lines: []HandOverLine{
		{SourcePool: poolFull, TargetPool: poolFull, SourcePages: from, TargetPages: to},
		{SourcePool: poolSWA, TargetPool: poolSWA, SourcePages: from, TargetPages: to},
	}}
	target, err := b.LeaseAcquire(both(to))
	if err != nil {
		t.Fatal(err)
	}
	if err := a.HandOver(b, &request); !errors.Is(err, ErrBusy) || !strings.Contains(err.Error(), "target") {
		t.Fatalf("to pages that are held: %v", err)
	}
	request.Held = true
	if err := a.HandOver(b, &request); err != nil {
		t.Fatal(err)
	}
	for pool := range uint32(2) {
		for i := range from {
			if want, got := envelope(t, a, held, pool, from[i]), envelope(t, b, target, pool, to[i]); !bytes.Equal(got, want) {
				t.Fatalf("pool %d, page %d: %x, want %x", pool, i, got[:16], want[:16])
			}
		}
	}
	source, err := a.Stats()
	if err != nil {
		t.Fatal(err)
	}
	if received, err := b.Stats(); err != nil || received.ReceivedBytes == 0 || received.ReceivedBytes != source.HandedOverBytes {
		t.Fatalf("handed over %d bytes, received %d: %v", source.HandedOverBytes, received.ReceivedBytes, err)
	}
	if err := errors.Join(a.LeaseRelease(held), b.LeaseRelease(target)); err != nil {
		t.Fatal(err)
	}
}

func TestHandOverRefuses(t *testing.T) {
	a, b := open(t, testOptions()), open(t, testOptions())
	wide := testOptions()
	wide.Pools[0].VRowBytes = 64
	other := open(t, wide)
	from, to := takeBoth(t, a, 2), takeBoth(t, b, 2)
	line := func(source, target []ids.VirtualPage) *HandOver {
		return &HandOver{Lines: []HandOverLine{{SourcePages: source, TargetPages: target}}}
	}
	for _, c := range []struct {
		name    string
		to      *Engine
		request *HandOver
		want    error
		text    string
	}{
		{"no engine", nil, line(from, to), ErrInvalid, "nil"},
		{"no request", b, nil, ErrInvalid, "nil"},
		{"unequal lines", b, line(from, to[:1]), ErrInvalid, "2 source pages and 1"},
		{"itself", a, line(from[:1], from[1:]), ErrInvalid, "one engine"},
		{"another layout", other, line(from, takeBoth(t, other, 2)), ErrInvalid, "v_row_bytes 64"},
		{"no such page", b, line([]ids.VirtualPage{999}, to[:1]), ErrNotMapped, "source"},
	} {
		err := a.HandOver(c.to, c.request)
		if !errors.Is(err, c.want) || !strings.Contains(err.Error(), c.text) {
			t.Errorf("%s: %v", c.name, err)
		}
	}
	var detail *Error
	if err := a.HandOver(other, line(from[:1], takeBoth(t, other, 1))); !errors.As(err, &detail) || detail.Need != 32 || detail.Have != 64 || detail.Pool != 0 {
		t.Errorf("need %d, have %d in pool %d: %v", detail.Need, detail.Have, detail.Pool, err)
	}
	gone, err := library(t).Open(testOptions())
	if err != nil {
		t.Fatal(err)
	}
	if err := gone.Close(); err != nil {
		t.Fatal(err)
	}
	if err := a.HandOver(gone, line(from, to)); !errors.Is(err, ErrClosed) || !strings.Contains(err.Error(), "target") {
		t.Errorf("to a closed engine: %v", err)
	}
	if err := gone.HandOver(a, line(from, to)); !errors.Is(err, ErrClosed) {
		t.Errorf("from a closed engine: %v", err)
	}
	if err := a.HandOver(b, line(from, to)); err != nil { // the refusals left nothing behind
		t.Error(err)
	}
}
