// Package convert turns engine events into the router events of KV-aware
// routers: it validates, filters, counts copies, hashes tokens and keeps the
// ledger of what has been published. It does no I/O, logs nothing and reads no clock.
package convert

import "strconv"

// Kind says what a router event does.
type Kind uint8

const (
	Stored Kind = iota + 1
	Removed
	Cleared
)

// Tier is where a block lies.
type Tier uint8

const (
	Device Tier = iota
	HostPinned
	Disk
	External
)

var tierNames = [...]string{"device", "host_pinned", "disk", "external"}

// String is the tier's name in router events.
func (t Tier) String() string {
	if int(t) < len(tierNames) {
		return tierNames[t]
	}
	return "tier(" + strconv.Itoa(int(t)) + ")"
}

// RouterEvent is one router event before it has an event id. Its slices alias
// the Output that made it and are valid until that is reset.
type RouterEvent struct {
	Kind      Kind
	Tier      Tier
	NoDomain  bool   // leave residency_domain out (first cleared of a publisher, lost history)
	SessionID []byte // nil: none
	HasParent bool   // Stored
	Parent    uint64
	Blocks    []Block  // Stored
	Hashes    []uint64 // Removed
}

// Block is one stored block.
type Block struct {
	Hash       uint64
	TokensHash uint64
	MM         []MMObject // nil: mm_extra_info is nil
}

// MMObject is one multimodal object in a block.
type MMObject struct {
	Hash    uint64
	Offsets [][2]uint64
}
