package convert

import (
	"bytes"
	"math"
	"testing"
)

// The bound on an event's size is the size of the longest there can be of its
// shape, but for the four bytes that a rank has less than other numbers.
func TestMaxEventSizeIsReached(t *testing.T) {
	longest := make([]Block, 1<<16) // whose header is the longest, too
	for i := range longest {
		longest[i] = Block{Hash: math.MaxUint64, TokensHash: math.MaxUint64}
	}
	hashes := make([]uint64, 1<<16)
	for i := range hashes {
		hashes[i] = math.MaxUint64
	}
	offsets := make([][2]uint64, 1<<16)
	for i := range offsets {
		offsets[i] = [2]uint64{math.MaxUint64, math.MaxUint64}
	}
	objects := make([]MMObject, 1<<16)
	for i := range objects {
		objects[i].Hash = math.MaxUint64
	}
	objects[0].Offsets = offsets
	for _, c := range []struct {
		name  string
		e     RouterEvent
		slack int
	}{
		{"store", RouterEvent{Kind: Stored, Tier: HostPinned, HasParent: true, Parent: math.MaxUint64, Blocks: longest}, 4},
		{"store without domain", RouterEvent{Kind: Stored, Tier: HostPinned, NoDomain: true, HasParent: true, Parent: math.MaxUint64, Blocks: longest}, 4 + len(keyDomain)},
		{"store of a session", RouterEvent{Kind: Stored, Tier: HostPinned, HasParent: true, Parent: math.MaxUint64, Blocks: longest,
			SessionID: bytes.Repeat([]byte("s"), 1<<16)}, 4},
		{"remove", RouterEvent{Kind: Removed, Tier: HostPinned, Hashes: hashes}, 4 + len(keyStored) + maxUint + len(keyStart) - len(keyRemoved)},
		{"objects", RouterEvent{Kind: Stored, Tier: HostPinned, HasParent: true, Parent: math.MaxUint64,
			Blocks: append([]Block{{Hash: math.MaxUint64, TokensHash: math.MaxUint64, MM: objects}}, longest...)}, 4 + 1 + (1<<16-1)*4},
	} {
		got := len(AppendEvent(nil, &c.e, math.MaxUint64, math.MaxUint32, math.MaxUint64))
		if bound := MaxEventSize(&c.e); bound-got != c.slack {
			t.Errorf("%s: %d bytes, the bound is %d above, want %d", c.name, got, bound-got, c.slack)
		}
	}
}

// Room is made at once for what an event may take, and by doubling.
func TestGrow(t *testing.T) {
	for _, c := range []struct{ length, capacity, n, want int }{
		{0, 0, 10, 10}, {5, 15, 10, 15}, {5, 14, 10, 28}, {5, 14, 100, 105}, {0, 64, 0, 64}, {64, 64, 1, 128},
	} {
		dst := bytes.Repeat([]byte("x"), c.capacity)[:c.length:c.capacity]
		got := grow(dst, c.n)
		if len(got) != c.length || cap(got) != c.want || !bytes.Equal(got, dst) {
			t.Errorf("%d of %d and %d more: %d of %d, want room for %d", c.length, c.capacity, c.n, len(got), cap(got), c.want)
		}
	}
	e := RouterEvent{Kind: Removed, Hashes: make([]uint64, 1000)}
	if n := testing.AllocsPerRun(10, func() { AppendEvent(nil, &e, 1, 2, 3) }); n != 1 {
		t.Errorf("%v allocations for one event", n)
	}
}

// The same settings have the same fingerprint in every version with these rules:
// else streams would not be resumed after an upgrade.
func TestFingerprintStaysTheSame(t *testing.T) {
	image, video := uint32(151655), uint32(0)
	for want, c := range map[uint64]Config{
		578064803090039386: {},
		412930636350705078: {WorkerID: 42, Rank: 3, BlockSize: 16, ImageToken: &image, VideoToken: &video, Duplicates: Presence, Eagle: EagleOff, RemovesForCleared: true, MaxBlocks: 1000},
	} {
		if got := c.Fingerprint(); got != want {
			t.Errorf("%+v: %d, was %d", c, got, want)
		}
	}
}
