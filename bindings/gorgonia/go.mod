module github.com/hicache/hicache/bindings/gorgonia

go 1.25.0

require (
	github.com/ebitengine/purego v0.11.3
	github.com/hicache/hicache v0.0.0
	gorgonia.org/cu v0.9.6
)

require (
	github.com/davecgh/go-spew v1.1.1 // indirect
	github.com/google/uuid v1.1.1 // indirect
	github.com/pkg/errors v0.9.1 // indirect
	gopkg.in/yaml.v3 v3.0.1 // indirect
)

replace github.com/hicache/hicache => ../..
