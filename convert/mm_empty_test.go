package convert

import (
	"bytes"
	"testing"

	"github.com/kvrelay/kvrelay/decode"
	"github.com/kvrelay/kvrelay/internal/msgpack"
)

// TestEmptyObjects: a block whose block_mm_infos entry has no object is published
// with an empty list, as Dynamo 1.6.1 does, not with nil; its hash is that of
// plain tokens. Seen with its own publisher, fed by ZMQ.
func TestEmptyObjects(t *testing.T) {
	var p []byte
	str := func(s string) { p = msgpack.AppendStr(p, s) }
	p = msgpack.AppendArrayHeader(p, 2)
	p = msgpack.AppendFloat(p, 1)
	p = msgpack.AppendArrayHeader(p, 1)
	p = msgpack.AppendMapHeader(p, 6)
	str("type")
	str("BlockStored")
	str("block_hashes")
	p = msgpack.AppendArrayHeader(p, 2)
	p = msgpack.AppendUint(msgpack.AppendUint(p, 130), 131)
	str("parent_block_hash")
	p = msgpack.AppendNil(p)
	str("token_ids")
	p = msgpack.AppendArrayHeader(p, 8)
	for i := range uint64(7) {
		p = msgpack.AppendUint(p, i+1)
	}
	p = msgpack.AppendUint(p, 130)
	str("block_size")
	p = msgpack.AppendUint(p, 4)
	str("block_mm_infos")
	p = msgpack.AppendArrayHeader(p, 2)
	p = msgpack.AppendMapHeader(p, 1)
	str("mm_objects")
	p = msgpack.AppendArrayHeader(p, 0)
	p = msgpack.AppendNil(p)

	var b decode.Batch
	if err := b.Decode(p); err != nil {
		t.Fatal(err)
	}
	r, out := New(Config{WorkerID: 7, BlockSize: 4}), new(Output)
	r.Convert(&b, out)
	if len(out.Events) != 1 || len(out.Events[0].Blocks) != 2 {
		t.Fatalf("%+v", out.Events)
	}
	first, second := out.Events[0].Blocks[0], out.Events[0].Blocks[1]
	if first.MM == nil || len(first.MM) != 0 || second.MM != nil {
		t.Errorf("objects %#v and %#v, want an empty list and nil", first.MM, second.MM)
	}
	if first.TokensHash != 14643705804678351452 || second.TokensHash != 17452379592408195216 {
		t.Errorf("hashes %d and %d", first.TokensHash, second.TokensHash) // Dynamo's
	}
	if got := AppendEvent(nil, &out.Events[0], 7, 0, 1); !bytes.Contains(got, []byte("mm_extra_info\x81\xaamm_objects\x90")) {
		t.Errorf("encoded as %q", got)
	}
	if got := AppendEventJSON(nil, &out.Events[0], 7, 0, 1); !bytes.Contains(got, []byte(`"mm_extra_info":{"mm_objects":[]}`)) {
		t.Errorf("encoded as %s", got)
	}
	// The ledger keeps it: another tier's store without tokens says the same.
	out.Reset()
	r.Convert(&decode.Batch{Events: []decode.Event{{Type: decode.Stored, Hashes: []uint64{130}, Medium: []byte("CPU")}}}, out)
	if len(out.Events) != 1 || out.Events[0].Blocks[0].MM == nil {
		t.Errorf("%+v", out.Events)
	}
}
