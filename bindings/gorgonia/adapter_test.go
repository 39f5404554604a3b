//go:build gorgonia

package gorgonia

import (
	"context"
	"errors"
	"os"
	"runtime"
	"testing"
	"unsafe"

	"github.com/ebitengine/purego"
	"gorgonia.org/cu"

	hicache "github.com/hicache/hicache/gohicache"
)

func TestStreamsAreTheirHandles(t *testing.T) {
	const handle = hicache.Stream(0x7fff12345678)
	if got := Stream(FromStream(handle)); got != handle {
		t.Errorf("%#x came back as %#x", handle, got)
	}
	if got := Stream(cu.NoStream); got != 0 {
		t.Errorf("no stream is %#x, want 0", got)
	}
}

// newStream makes a stream of device 0's context, which is the thread's until the test ends.
func newStream(t *testing.T) cu.Stream {
	t.Helper()
	runtime.LockOSThread()
	t.Cleanup(runtime.UnlockOSThread)
	if _, err := Context(0); err != nil {
		t.Fatal(err)
	}
	stream, err := cu.MakeStream(cu.NonBlocking)
	if err != nil {
		t.Fatal(err)
	}
	return stream
}

// TestPagesWrittenByCu writes pages through cu on a stream of cu, lets the cache move them to the host and back, and reads them through cu.
func TestPagesWrittenByCu(t *testing.T) {
	devices, err := cu.NumDevices()
	if err != nil || devices == 0 {
		t.Skipf("NOT TESTED: no CUDA device (%v)", err)
	}
	stream := newStream(t)
	ctx, prompts, length := context.Background(), 40, 256
	cache, err := hicache.Open(ctx, &hicache.Options{
		Device: Device(0), DeviceBytes: 8 << 20, HostBytes: 128 << 20, PageTokens: 16, WritePolicy: hicache.WriteThrough,
		Library: os.Getenv("HICACHE_LIBRARY"),
		Pools:   []hicache.PoolOptions{{Role: hicache.Full, Layers: []int{0, 1}, LayerBytes: 4096}},
	})
	if err != nil {
		t.Fatal(err)
	}
	for round := range 2 { // The second finds on the host what the first wrote and the device has no more room for.
		for n := range prompts {
			tokens := make([]uint32, length)
			for i := range tokens {
				tokens[i] = uint32(n*length + i)
			}
			m := cache.MatchWith(tokens, hicache.MatchOptions{FullHit: true})
			lease, err := cache.Load(ctx, m, hicache.LoadOptions{Tokens: length, Stream: Stream(stream), Wait: true})
			if err != nil {
				t.Fatal(err)
			}
			if err := lease.Wait(ctx); err != nil {
				t.Fatal(err)
			}
			found := lease.Prefix() / 16
			if round == 1 && found == 0 {
				t.Errorf("prompt %d was not found", n)
			}
			for i, id := range lease.KernelIDs(hicache.Full) {
				at, bytes, err := Page(cache, 0, id)
				if err != nil {
					t.Fatal(err)
				}
				want := byte(n*31 + i + 1)
				if i >= found {
					if err := cu.MemsetD8Async(at, want, bytes, stream); err != nil {
						t.Fatal(err)
					}
					continue
				}
				// Wait has put the arrival of the pages before what follows on the stream; a copy of another stream has to follow it.
				if err := stream.Synchronize(); err != nil {
					t.Fatal(err)
				}
				have := make([]byte, bytes)
				if err := cu.MemcpyDtoH(unsafe.Pointer(&have[0]), at, bytes); err != nil {
					t.Fatal(err)
				}
				for j, b := range have {
					if b != want {
						t.Fatalf("prompt %d, page %d, byte %d: %d, want %d", n, i, j, b, want)
					}
				}
			}
			if err := cache.Insert(lease, tokens); err != nil {
				t.Fatal(err)
			}
			lease.Release()
			m.Release()
		}
		if err := cache.Flush(ctx); err != nil {
			t.Fatal(err)
		}
	}
	if err := stream.Synchronize(); err != nil {
		t.Fatal(err)
	}
	if cache.Stats().LoadBacks == 0 {
		t.Error("nothing came back from the host: the test is void")
	}
	if err := cache.Close(); err != nil {
		t.Fatal(err)
	}
	if err := stream.Destroy(); err != nil {
		t.Fatal(err)
	}
}

// captureByHand is how the simulated driver is told that a stream is being captured, or no more.
func captureByHand(t *testing.T) func(cu.Stream, bool) {
	t.Helper()
	simulator := os.Getenv("HICACHE_LIBCUDA")
	if simulator == "" {
		t.Skip("NOT TESTED: needs the simulated driver, which captures when it is told to")
	}
	driver, err := purego.Dlopen(simulator, purego.RTLD_NOW)
	if err != nil {
		t.Fatal(err)
	}
	capture, err := purego.Dlsym(driver, "simulated_cuda_capture")
	if err != nil {
		t.Skipf("NOT TESTED: needs the simulated driver, which captures when it is told to (%v)", err)
	}
	return func(stream cu.Stream, on bool) {
		value := uintptr(0)
		if on {
			value = 1
		}
		purego.SyscallN(capture, uintptr(Stream(stream)), value)
	}
}

// A lease and a step that end while their stream is being captured leave no fence yet: their pages stay until the capture is over, and nothing is lost.
func TestWhatEndsDuringACapture(t *testing.T) {
	capture := captureByHand(t)
	stream := newStream(t)
	ctx := context.Background()
	cache, err := hicache.Open(ctx, &hicache.Options{
		Device: Device(0), DeviceBytes: 8 << 20, PageTokens: 16, Library: os.Getenv("HICACHE_LIBRARY"),
		Pools: []hicache.PoolOptions{{Role: hicache.Full, Layers: []int{0, 1}, LayerBytes: 4096}},
	})
	if err != nil {
		t.Fatal(err)
	}
	tokens := make([]uint32, 256)
	m := cache.MatchWith(tokens, hicache.MatchOptions{FullHit: true})
	lease, err := cache.Load(ctx, m, hicache.LoadOptions{Tokens: len(tokens), Stream: Stream(stream), Wait: true})
	if err != nil {
		t.Fatal(err)
	}
	m.Release()
	sequence, err := cache.Begin(ctx, tokens[:40], hicache.SequenceOptions{Stream: Stream(stream), Wait: true})
	if err != nil {
		t.Fatal(err)
	}
	step, err := cache.Step(ctx, Stream(stream), []hicache.Growth{{Sequence: sequence, NewTokens: 1}}, true)
	if err != nil {
		t.Fatal(err)
	}
	capture(stream, true)
	step.Close()
	sequence.Abort()
	lease.Release()
	if err := cache.Close(); !errors.Is(err, hicache.ErrBusy) {
		t.Errorf("close during the capture: %v", err)
	}
	capture(stream, false)
	if err := cache.Verify(); err != nil {
		t.Error(err)
	}
	if err := cache.Close(); err != nil {
		t.Error(err)
	}
	if err := stream.Destroy(); err != nil {
		t.Fatal(err)
	}
}

// Once the capture is over, who lacks room gets the pages of what ended during it: of a lease, a step, or a batch's step.
func TestRoomAfterACapture(t *testing.T) {
	capture := captureByHand(t)
	stream := newStream(t)
	ctx := context.Background()
	for _, kind := range []string{"lease", "step", "batch"} {
		cache, err := hicache.Open(ctx, &hicache.Options{
			Device: Device(0), DeviceBytes: 8 << 20, PageTokens: 16, Library: os.Getenv("HICACHE_LIBRARY"),
			Pools: []hicache.PoolOptions{{Role: hicache.Full, Layers: []int{0, 1}, LayerBytes: 4096}},
		})
		if err != nil {
			t.Fatal(err)
		}
		tokens := make([]uint32, 16*40) // of some 60 pages
		load := func(on hicache.Stream) (*hicache.Lease, error) {
			m := cache.MatchWith(tokens, hicache.MatchOptions{FullHit: true})
			defer m.Release()
			return cache.Load(ctx, m, hicache.LoadOptions{Tokens: len(tokens), Stream: on})
		}
		var end func()
		if kind == "lease" {
			lease, err := load(Stream(stream))
			if err != nil {
				t.Fatal(err)
			}
			end = lease.Release
		} else {
			sequence, err := cache.Begin(ctx, tokens, hicache.SequenceOptions{Stream: Stream(stream)})
			if err != nil {
				t.Fatal(err)
			}
			growth := []hicache.Growth{{Sequence: sequence, NewTokens: 1}}
			if kind == "step" {
				step, err := cache.Step(ctx, Stream(stream), growth, false)
				if err != nil {
					t.Fatal(err)
				}
				end = func() { step.Close(); sequence.Abort() }
			} else {
				batch := cache.NewBatch(Stream(stream))
				if err := batch.Step(ctx, growth, nil, false); err != nil {
					t.Fatal(err)
				}
				end = func() { batch.Close(); sequence.Abort() }
			}
		}
		capture(stream, true)
		end()
		if _, err := load(0); !errors.Is(err, hicache.ErrNoCapacity) {
			t.Errorf("%s: room during the capture: %v", kind, err)
		}
		capture(stream, false)
		if lease, err := load(0); err != nil {
			t.Errorf("%s: after the capture: %v", kind, err)
		} else {
			lease.Release()
		}
		if err := cache.Verify(); err != nil {
			t.Error(kind, err)
		}
		if err := cache.Close(); err != nil {
			t.Error(kind, err)
		}
	}
	if err := stream.Destroy(); err != nil {
		t.Fatal(err)
	}
}
