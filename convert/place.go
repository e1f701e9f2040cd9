package convert

import "github.com/kvrelay/kvrelay/decode"

// place is the tier of an event, or why the event is not this worker's: a block
// store beside the engine owns it, it lies elsewhere, or nobody knows where.
func place(ev *decode.Event) (Tier, Reason) {
	tier, known := tierOf(ev.Medium)
	owner := ev.Ownership
	if ev.Type == decode.Cleared && !ev.IsMap && !known {
		// The slot of an array holds either; what is no medium is an owner.
		owner, tier, known = ev.Medium, Device, true
	}
	switch {
	case len(owner) > 0 && string(owner) != "framework":
		return 0, ReasonForeignOwner
	case ev.OtherLocality || ev.Locality != nil && string(ev.Locality) != "LOCAL":
		return 0, ReasonNonLocal
	case !known:
		return 0, ReasonUnknownMedium
	}
	return tier, noReason
}

// tierOf reads a medium, in any case. Engines that name none mean the device.
func tierOf(medium []byte) (Tier, bool) {
	const longest = len("CPU_PINNED")
	if string(medium) == "GPU" { // nearly always
		return Device, true
	}
	if len(medium) > longest {
		return 0, false
	}
	var upper [longest]byte
	for i, c := range medium {
		if 'a' <= c && c <= 'z' {
			c -= 'a' - 'A'
		}
		upper[i] = c
	}
	switch string(upper[:len(medium)]) {
	case "", "GPU", "DEVICE":
		return Device, true
	case "CPU", "CPU_PINNED", "CPU_TIER1":
		return HostPinned, true
	case "CPU_TIER2", "DISK", "NVME", "STORAGE", "FS":
		return Disk, true
	case "EXTERNAL", "NETWORK", "REMOTE", "SHARED", "OBJ":
		return External, true
	}
	return 0, false
}
