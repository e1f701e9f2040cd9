package decode

import "github.com/kvrelay/kvrelay/internal/msgpack"

// PeekTS reads the wall-clock ts, in seconds, of a batch in either form,
// without looking at the rest. It is false where there is no finite number;
// of a repeated key in a map the first counts.
func PeekTS(payload []byte) (ts float64, ok bool) {
	r := msgpack.NewReader(payload)
	if n, isArray := r.Array(); isArray {
		if n < 2 {
			return 0, false
		}
		return number(&r)
	}
	n, isMap := r.Map()
	for ; isMap && n > 0; n-- {
		if key, text := r.Text(); text && string(key) == "ts" {
			return number(&r)
		} else if !text {
			r.Skip()
		}
		if !r.Skip() {
			break
		}
	}
	return 0, false
}
