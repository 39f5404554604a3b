// Package proptest holds the random tests that go through the public API: state machines over the engine and over the cache against
// naive models, metamorphic and simulation tests, and the tests that deliberate faults must not pass. See docs/TESTING.md.
package proptest
