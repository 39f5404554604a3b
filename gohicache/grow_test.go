package hicache_test

import (
	"context"
	"errors"
	"testing"
	"time"

	hicache "github.com/hicache/hicache/gohicache"
)

// TestBatchThatOutgrowsTheDevice: an answer that needs more than the device has, with nobody else holding anything, ends at once instead of
// waiting for itself; with somebody else there it waits for them.
func TestBatchThatOutgrowsTheDevice(t *testing.T) {
	s := open(t, hicache.Options{DeviceBytes: 8 * kib, HostBytes: 8 * kib, Pools: fullPools()}) // 15 pages
	limit, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	seq, err := s.c.Begin(limit, prompt(1, 20), hicache.SequenceOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer seq.Abort()
	batch := s.c.NewBatch(0)
	defer batch.Close()
	steps := map[string]func(n int) error{
		"extend": func(n int) error { return s.c.Extend(limit, []hicache.Growth{{Sequence: seq, NewTokens: n}}, true) },
		"step": func(n int) error {
			step, err := s.c.Step(limit, 0, []hicache.Growth{{Sequence: seq, NewTokens: n}}, true)
			if err == nil {
				step.Close()
			}
			return err
		},
		"batch": func(n int) error {
			return batch.Step(limit, []hicache.Growth{{Sequence: seq, NewTokens: n}}, nil, true)
		},
	}
	for name, step := range steps {
		if err := step(1); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		start := time.Now()
		if err := step(1000); !errors.Is(err, hicache.ErrInfeasible) {
			t.Errorf("%s: %v", name, err)
		}
		if d := time.Since(start); d > 10*time.Second {
			t.Errorf("%s: it took %v", name, d)
		}
	}
	batch.Close()
	other, err := s.c.Begin(limit, prompt(2, 24), hicache.SequenceOptions{})
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error)
	go func() { done <- steps["step"](20) }()
	await(t, "the step waits", func() bool { return s.c.Stats().CapacityWait > 3 })
	other.Abort()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}
