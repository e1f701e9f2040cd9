package decode

import (
	"bytes"
	"errors"

	"github.com/vmihailenco/msgpack/v5"
	"github.com/vmihailenco/msgpack/v5/msgpcode"
)

// node is one msgpack value. A map's list holds key, value, key, value, …
type node struct {
	kind  string // nil, bool, int, float, str, bin, array, map, ext
	num   uint64 // int: two's complement
	neg   bool
	float float64
	text  []byte
	list  []node
}

var errBroken = errors.New("broken")

// parse reads the first value of p. deep says that containers lie more than a
// thousand deep, where decoders may differ.
func parse(p []byte) (n node, deep bool, err error) {
	t := treeReader{dec: msgpack.NewDecoder(bytes.NewReader(p)), left: len(p)}
	n, err = t.value(0)
	return n, t.deep, err
}

type treeReader struct {
	dec  *msgpack.Decoder
	left int
	deep bool
}

func (t *treeReader) value(depth int) (n node, err error) {
	if depth > 1000 {
		t.deep = true
		return n, errBroken
	}
	d := t.dec
	c, err := d.PeekCode()
	if err != nil {
		return n, err
	}
	elements := -1
	switch {
	case c == msgpcode.Nil:
		return node{kind: "nil"}, d.DecodeNil()
	case c == msgpcode.True, c == msgpcode.False:
		_, err = d.DecodeBool()
		return node{kind: "bool"}, err
	case c == msgpcode.Float, c == msgpcode.Double:
		n.kind = "float"
		n.float, err = d.DecodeFloat64()
		return n, err
	case msgpcode.IsFixedNum(c) && c < 0x80, c >= msgpcode.Uint8 && c <= msgpcode.Uint64:
		n.kind = "int"
		n.num, err = d.DecodeUint64()
		return n, err
	case msgpcode.IsFixedNum(c), c >= msgpcode.Int8 && c <= msgpcode.Int64:
		v, err := d.DecodeInt64()
		return node{kind: "int", num: uint64(v), neg: v < 0}, err
	case msgpcode.IsString(c), msgpcode.IsBin(c):
		n.kind = "bin"
		if msgpcode.IsString(c) {
			n.kind = "str"
		}
		size, err := d.DecodeBytesLen()
		if err == nil && size > t.left {
			err = errBroken // DecodeBytes would allocate a megabyte first
		}
		if err != nil {
			return n, err
		}
		n.text = make([]byte, size)
		return n, d.ReadFull(n.text)
	case msgpcode.IsExt(c):
		_, size, err := d.DecodeExtHeader()
		if err == nil && size > t.left {
			err = errBroken
		}
		if err == nil {
			err = d.ReadFull(make([]byte, size))
		}
		return node{kind: "ext"}, err
	case msgpcode.IsFixedArray(c), c == msgpcode.Array16, c == msgpcode.Array32:
		n.kind = "array"
		elements, err = d.DecodeArrayLen()
	case msgpcode.IsFixedMap(c), c == msgpcode.Map16, c == msgpcode.Map32:
		n.kind = "map"
		elements, err = d.DecodeMapLen()
		elements *= 2
	default:
		return n, errBroken
	}
	for ; err == nil && elements > 0; elements-- {
		var e node
		if e, err = t.value(depth + 1); err == nil {
			n.list = append(n.list, e)
		}
	}
	return n, err
}

func (n node) isText() bool { return n.kind == "str" || n.kind == "bin" }
func (n node) isNil() bool  { return n.kind == "nil" || n.kind == "" }

// field is the last value of a key in a map; absent: a node without kind.
func (n node) field(name string) (v node) {
	for i := 0; i < len(n.list); i += 2 {
		if k := n.list[i]; k.isText() && string(k.text) == name {
			v = n.list[i+1]
		}
	}
	return v
}
