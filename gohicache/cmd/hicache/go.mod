module github.com/hicache/hicache/gohicache/cmd/hicache

go 1.25.0

require (
	github.com/NVIDIA/go-nvml v0.13.4-1
	github.com/hicache/hicache v0.0.0
	github.com/zeebo/xxh3 v1.1.0
	golang.org/x/sys v0.30.0
)

require (
	github.com/ebitengine/purego v0.11.3 // indirect
	github.com/klauspost/cpuid/v2 v2.2.10 // indirect
)

replace github.com/hicache/hicache => ../../..
