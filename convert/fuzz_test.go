package convert

import (
	"testing"

	"github.com/kvrelay/kvrelay/decode"
	"github.com/kvrelay/kvrelay/internal/fuzzlimit"
)

// FuzzPayload converts whatever bytes an engine could send, twice, on a state
// that knows a little: nothing panics, the sums agree, and the ledger is what
// was published, which can be encoded.
func FuzzPayload(f *testing.F) {
	for _, v := range readVectors(f) {
		f.Add(unhex(f, v.Payload), byte(len(v.ID)))
	}
	f.Fuzz(func(t *testing.T, payload []byte, mode byte) {
		image, video := uint32(99), uint32(100)
		c := Config{
			Duplicates: Duplicates(mode % 3), Eagle: Eagle(mode / 3 % 3), MaxBlocks: 64,
			ImageToken: &image, RemovesForCleared: mode&64 != 0,
		}
		if mode&128 != 0 {
			c.VideoToken = &video
		}
		r, fold := New(c), picture{}
		var b decode.Batch
		var out Output
		r.Convert(&decode.Batch{Events: []decode.Event{stored(0, []uint64{1, 2}), stored(2, []uint64{3}, salted("a"))}}, &out)
		fold.apply(out.Events)
		for range 2 {
			if b.Decode(payload) != nil {
				r.Undecodable()
				continue
			}
			fuzzlimit.Run(t, len(payload), func() {
				again := New(c)
				var twice Output
				again.Convert(&b, &twice)
			})
			out.Reset()
			r.Convert(&b, &out)
			fold.apply(out.Events)
			for i := range out.Events {
				e := &out.Events[i]
				if len(AppendEvent(nil, e, 1, 2, 3)) > MaxEventSize(e) {
					t.Error("longer than its bound")
				}
				jsonValue(t, AppendEventJSON(nil, e, 1, 2, 3))
			}
		}
		samePicture(t, r, fold)
		accounted(t, r.Stats())
		checkLedger(t, &r.ledger)
	})
}
