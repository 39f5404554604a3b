module github.com/hicache/hicache/gohicache/events/zmq

go 1.25.0

require (
	github.com/go-zeromq/zmq4 v0.17.0
	github.com/hicache/hicache v0.0.0
	github.com/vmihailenco/msgpack/v5 v5.4.1
	go.uber.org/goleak v1.3.0
)

require (
	github.com/ebitengine/purego v0.11.3 // indirect
	github.com/go-zeromq/goczmq/v4 v4.2.2 // indirect
	github.com/vmihailenco/tagparser/v2 v2.0.0 // indirect
	golang.org/x/sync v0.7.0 // indirect
	golang.org/x/text v0.15.0 // indirect
)

replace github.com/hicache/hicache => ../../..
