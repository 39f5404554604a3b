package hicache

import "github.com/hicache/hicache/gohicache/internal/radix"

// Namespace separates caches of different adapters and tenants on every tier: equal tokens of two namespaces share nothing. It has two
// parts, the name of an adapter (LoRA) and a salt (a tenant's secret, say); a part that is absent differs from one that is empty, and
// ("a", "bc") differs from ("ab", "c"). The zero value, with both absent, is the default namespace. Namespaces are comparable.
type Namespace struct{ lora, salt radix.Label }

// WithLoRA returns the namespace with that adapter name.
func (n Namespace) WithLoRA(name string) Namespace {
	n.lora = radix.Some(name)
	return n
}

// WithSalt returns the namespace with that salt.
func (n Namespace) WithSalt(salt string) Namespace {
	n.salt = radix.Some(salt)
	return n
}

// Salt is the namespace with only a salt.
func Salt(salt string) Namespace { return Namespace{}.WithSalt(salt) }

// IsDefault reports whether both parts are absent.
func (n Namespace) IsDefault() bool { return n == Namespace{} }

func (n Namespace) radix() radix.Namespace { return radix.Namespace{LoRA: n.lora, Salt: n.salt} }
