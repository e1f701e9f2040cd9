// Package integration tests kvrelay against real peers: libzmq (through
// pyzmq), recorded streams of real engines, nats-server, and the built binary.
// It has no code of its own outside its tests.
//
// Tests that need Python carry the build tag "integration"; `make test` sets
// it, and then a missing peer is a failure.
package integration
