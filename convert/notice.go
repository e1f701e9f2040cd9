package convert

import (
	"fmt"
	"math"
)

// NoticeKind is what a Notice tells.
type NoticeKind uint8

const (
	// NoticeBlockSize: the block size was learned; Got is it.
	NoticeBlockSize NoticeKind = iota + 1
	// NoticeMismatch: stores have another block size than is expected, and
	// none, or none of the last 64, had the right one.
	NoticeMismatch
	// NoticeFullReporting: the engine announces reused blocks again.
	NoticeFullReporting
	// NoticeUntrusted: the engine's hashes stand for several places.
	NoticeUntrusted
	// NoticeBound: a bound was reached for the first time; Bound is it.
	NoticeBound
)

// Notice is something that a person should be told once. It holds numbers only.
type Notice struct {
	Kind      NoticeKind
	Want, Got uint64 // block sizes
	Learned   bool   // NoticeMismatch: Want was learned, not set or discovered
	Bound     Bound
}

// String is the line for the log.
func (n Notice) String() string {
	switch n.Kind {
	case NoticeBlockSize:
		return fmt.Sprintf("block size %d learned from the engine's first store", n.Got)
	case NoticeMismatch:
		if n.Got == 0 || n.Got > math.MaxUint32 {
			return fmt.Sprintf("the engine stores blocks of %d tokens, which cannot be, and %d are expected: nothing is published; is this an engine's event stream?", n.Got, n.Want)
		}
		if n.Learned {
			return fmt.Sprintf("the engine stores blocks of %d tokens, but its first store taught %d: nothing is published; set BLOCK_SIZE=%d if that is the engine's size", n.Got, n.Want, n.Got)
		}
		return fmt.Sprintf("the engine stores blocks of %d tokens, but %d are expected: nothing is published; set BLOCK_SIZE=%d, or correct what discovery says", n.Got, n.Want, n.Got)
	case NoticeFullReporting:
		return "the engine reports fully (kv_cache_report_mode=full): announcements of reused blocks no longer count as copies"
	case NoticeUntrusted:
		return "the engine's block hashes stand for several places or name wrong parents (SGLang ≤ 0.5.5 does so): prefixes of this engine version cannot be trusted"
	case NoticeBound:
		return "a bound was reached: " + n.Bound.String()
	}
	return fmt.Sprintf("notice(%d)", n.Kind)
}
