//go:build linux && (amd64 || arm64) && !(hicache_cgo && cgo)

// Empty: with an assembly file the compiler lets a function have its body elsewhere (cgocall).
