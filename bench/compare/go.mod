module github.com/kvrelay/kvrelay/bench/compare

go 1.26.0

replace github.com/kvrelay/kvrelay => ../..

require (
	github.com/kvrelay/kvrelay v0.0.0-00010101000000-000000000000
	github.com/tinylib/msgp v1.6.5
	github.com/vmihailenco/msgpack/v5 v5.4.1
)

require (
	github.com/klauspost/cpuid/v2 v2.2.10 // indirect
	github.com/philhofer/fwd v1.2.0 // indirect
	github.com/vmihailenco/tagparser/v2 v2.0.0 // indirect
	github.com/zeebo/xxh3 v1.1.0 // indirect
	golang.org/x/sys v0.50.0 // indirect
)
