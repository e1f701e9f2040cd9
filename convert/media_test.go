package convert

import (
	"strings"
	"testing"

	"github.com/kvrelay/kvrelay/decode"
)

// Every medium in any case, and nothing that is only nearly one.
func TestMediaAndTheirNeighbors(t *testing.T) {
	media := map[string]Tier{
		"": Device, "GPU": Device, "DEVICE": Device,
		"CPU": HostPinned, "CPU_PINNED": HostPinned, "CPU_TIER1": HostPinned,
		"CPU_TIER2": Disk, "DISK": Disk, "NVME": Disk, "STORAGE": Disk, "FS": Disk,
		"EXTERNAL": External, "NETWORK": External, "REMOTE": External, "SHARED": External, "OBJ": External,
	}
	check := func(name string) {
		want, known := media[strings.ToUpper(name)]
		if tier, ok := tierOf([]byte(name)); tier != want || ok != known {
			t.Errorf("%q: %v, %t, want %v, %t", name, tier, ok, want, known)
		}
	}
	for name := range media {
		check(name)
		check(strings.ToLower(name))
		for i := range len(name) {
			check(name[:i] + strings.ToLower(name[i:i+1]) + name[i+1:])
			check(name[:i] + name[i+1:])
			for _, flip := range []byte{1, 2, 4, 8, 16, 0x20, 0x40, 0x80} {
				b := []byte(name)
				if b[i] ^= flip; flip == 0x20 && 'A' <= name[i] && name[i] <= 'Z' {
					continue // its other case
				}
				check(string(b))
			}
		}
		check(name + "X")
		check("X" + name)
		check(name + "\x00")
		check(" " + name)
	}
	check("@CPU")
	check("[GPU")
	check("CPU\x5fPINNEDX")
	check(strings.Repeat("G", 1000))
}

// A clear's slot 1: a medium or nil is a medium, other text an owner.
func TestClearedSlot(t *testing.T) {
	for _, c := range []struct {
		medium, owner string
		isMap         bool
		want          Reason
	}{
		{"", "", false, noReason}, {"GPU", "", false, noReason}, {"cpu", "", false, noReason}, {"obj", "", false, noReason},
		{"framework", "", false, noReason}, {"mooncake", "", false, ReasonForeignOwner}, {"GPT", "", false, ReasonForeignOwner},
		{"", "", true, noReason}, {"disk", "", true, noReason}, {"framework", "", true, ReasonUnknownMedium},
		{"", "framework", true, noReason}, {"", "mooncake", true, ReasonForeignOwner}, {"nowhere", "mooncake", true, ReasonForeignOwner},
	} {
		ev := decode.Event{Type: decode.Cleared, Medium: []byte(c.medium), Ownership: []byte(c.owner), IsMap: c.isMap}
		if _, got := place(&ev); got != c.want {
			t.Errorf("%+v: %s", c, got)
		}
		x := newTester(t, Config{})
		x.quiet(stored(0, []uint64{1}))
		x.quiet(ev)
		if cleared := x.r.Stats().Present == 0; cleared != (c.want == noReason) {
			t.Errorf("%+v: cleared %t", c, cleared)
		}
	}
}
