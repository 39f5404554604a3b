package radix

import "testing"

// C75: a path that Clear or DropNamespace has dropped while a store holds it must not be hashed as somebody else's: it has no namespace any
// more.
func TestDroppedPathsHaveNoHashes(t *testing.T) {
	for name, drop := range map[string]func(*Tree, Namespace, *Freed){
		"drop":  func(tree *Tree, ns Namespace, f *Freed) { tree.DropNamespace(ns, f) },
		"clear": func(tree *Tree, _ Namespace, f *Freed) { tree.Clear(f) },
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, fullOnly(4))
			ns := Namespace{Salt: Some("tenant")}
			f.insert(InsertRequest{Namespace: ns, Tokens: seq(0, 16)})
			r := f.insert(InsertRequest{Namespace: ns, Tokens: append(seq(0, 8), 1, 1, 1, 1), Pin: true})
			var fr Freed
			drop(f.tree, ns, &fr)
			f.free(&fr)
			if got, err := f.tree.Hashes(r.Pin, 0, 3, nil); err != ErrStale {
				t.Errorf("hashes of a dropped path: %v, %v", got, err)
			}
			f.tree.Release(r.Pin)
		})
	}
}
