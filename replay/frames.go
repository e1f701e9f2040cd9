package replay

import "encoding/binary"

// endSeq as a sequence number is no batch but the end of a replay; engines
// write it as −1.
const endSeq = 1<<64 - 1

// Reply is one message of a replay.
type Reply struct {
	Seq     uint64 // of the batch; 2^64 − 1 with End
	Topic   []byte // often empty; valid until the next Next
	Payload []byte // of the batch; nil with End; valid until the next Next
	End     bool   // the end marker, which proves nothing about what came before it
}

// parseReply reads a reply as a DEALER sees it. Producers differ in what they
// put in front (delimiter, delimiter and topic, nothing), so it is read from the end:
//
//	"" topic seq payload    vLLM ≥ 0.26, SGLang ≥ 0.5.22, TensorRT-LLM
//	"" seq payload          older ones, Dynamo's mocker
//	seq payload             ATOM, which echoes what the request had in front
//
// The end marker is the same with seq FF×8 and an empty payload, or without
// a payload frame. problem is empty, or why the frames are none of these.
func parseReply(frames [][]byte) (r Reply, problem string) {
	n := len(frames)
	if n >= 2 && len(frames[n-2]) == 8 {
		r.Seq = binary.BigEndian.Uint64(frames[n-2])
		if n >= 3 {
			r.Topic = frames[n-3]
		}
		if r.Seq == endSeq {
			r.End = true
			return r, ""
		}
		r.Payload = frames[n-1]
		return r, ""
	}
	switch last := frames[n-1]; {
	case len(last) == 8 && binary.BigEndian.Uint64(last) == endSeq:
		return Reply{Seq: endSeq, End: true}, ""
	case n == 1:
		return r, "one frame, and no end marker"
	}
	return r, "seq is not 8 bytes"
}

// request is the frames of a request for everything from start on.
func request(start uint64) [][]byte {
	return [][]byte{nil, binary.BigEndian.AppendUint64(nil, start)}
}

// Live is one message of an engine's live stream.
type Live struct {
	Topic   []byte // often empty
	Seq     uint64 // meaningful when HasSeq
	HasSeq  bool   // false: a producer that does not number its batches; gaps cannot be seen
	Payload []byte
}

// ParseLive reads a message of the live stream, whose slices alias frames:
//
//	topic seq payload    vLLM, SGLang, TensorRT-LLM
//	topic payload        ATOM of old
//	payload              the same with an empty topic
//
// problem is empty, or why the frames are none of these, from a fixed list.
func ParseLive(frames [][]byte) (l Live, problem string) {
	switch len(frames) {
	case 1:
		return Live{Payload: frames[0]}, ""
	case 2:
		return Live{Topic: frames[0], Payload: frames[1]}, ""
	case 3:
		if len(frames[1]) != 8 {
			return l, "seq is not 8 bytes"
		}
		l = Live{Topic: frames[0], Seq: binary.BigEndian.Uint64(frames[1]), HasSeq: true, Payload: frames[2]}
		if l.Seq == endSeq {
			return Live{}, "seq is the end marker's"
		}
		return l, ""
	}
	return l, "not one to three frames"
}
