// Package gorgonia lets a program that uses gorgonia.org/cu share its streams, contexts and device pointers with a cache. It is built with the tag
// gorgonia, by cgo, beside the headers of CUDA 12 (cu v0.9.6 does not compile against those of CUDA 13):
//
//	CGO_CFLAGS=-I.../cuda/include go build -tags gorgonia ./...
//
// Without the tag the package is empty, so that a module which imports it still builds where there is no CUDA.
package gorgonia
