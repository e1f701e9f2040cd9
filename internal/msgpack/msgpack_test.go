package msgpack

import (
	"bytes"
	"encoding/hex"
	"errors"
	"math"
	"testing"

	"github.com/vmihailenco/msgpack/v5"
)

func unhex(t testing.TB, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(s)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// The smallest encoding at both sides of every boundary.
func TestAppendIntegers(t *testing.T) {
	for v, want := range map[uint64]string{
		0x8102: "cd8102", 0x81020384: "ce81020384", 0x8102038405068708: "cf8102038405068708",
		0: "00", 127: "7f", 128: "cc80", 255: "ccff", 256: "cd0100", 65535: "cdffff", 65536: "ce00010000",
		math.MaxUint32: "ceffffffff", math.MaxUint32 + 1: "cf0000000100000000", math.MaxUint64: "cfffffffffffffffff",
	} {
		if got := hex.EncodeToString(AppendUint(nil, v)); got != want {
			t.Errorf("AppendUint(%d) = %s, want %s", v, got, want)
		}
	}
	for v, want := range map[int64]string{
		0: "00", 127: "7f", 128: "cc80", math.MaxInt64: "cf7fffffffffffffff", -0x0203: "d1fdfd", -0x02030405: "d2fdfcfbfb",
		-0x0203040506070809: "d3fdfcfbfaf9f8f7f7",
		-1:                  "ff", -32: "e0", -33: "d0df", -128: "d080", -129: "d1ff7f", -32768: "d18000", -32769: "d2ffff7fff",
		math.MinInt32: "d280000000", math.MinInt32 - 1: "d3ffffffff7fffffff", math.MinInt64: "d38000000000000000",
	} {
		if got := hex.EncodeToString(AppendInt(nil, v)); got != want {
			t.Errorf("AppendInt(%d) = %s, want %s", v, got, want)
		}
	}
}

func TestAppendHeaders(t *testing.T) {
	type header func([]byte, int) []byte
	str := func(dst []byte, n int) []byte {
		out := AppendStr(dst, bytes.Repeat([]byte{'x'}, n))
		return out[:len(out)-n]
	}
	bin := func(dst []byte, n int) []byte {
		out := AppendBin(dst, make([]byte, n))
		return out[:len(out)-n]
	}
	for _, c := range []struct {
		name string
		f    header
		n    int
		want string
	}{
		{"str", str, 0, "a0"}, {"str", str, 31, "bf"}, {"str", str, 32, "d920"}, {"str", str, 255, "d9ff"},
		{"str", str, 256, "da0100"}, {"str", str, 65535, "daffff"}, {"str", str, 65536, "db00010000"},
		{"bin", bin, 0, "c400"}, {"bin", bin, 255, "c4ff"}, {"bin", bin, 256, "c50100"}, {"bin", bin, 65535, "c5ffff"},
		{"bin", bin, 65536, "c600010000"},
		{"array", AppendArrayHeader, 0, "90"}, {"array", AppendArrayHeader, 15, "9f"}, {"array", AppendArrayHeader, 16, "dc0010"},
		{"array", AppendArrayHeader, 65535, "dcffff"}, {"array", AppendArrayHeader, 65536, "dd00010000"},
		{"map", AppendMapHeader, 0, "80"}, {"map", AppendMapHeader, 15, "8f"}, {"map", AppendMapHeader, 16, "de0010"},
		{"map", AppendMapHeader, 65535, "deffff"}, {"map", AppendMapHeader, 65536, "df00010000"},
		{"array", AppendArrayHeader, math.MaxUint32, "ddffffffff"}, {"map", AppendMapHeader, math.MaxUint32, "dfffffffff"},
		{"bin", AppendBinHeader, math.MaxUint32, "c6ffffffff"}, {"bin", AppendBinHeader, 0x81020384, "c681020384"},
		{"array", AppendArrayHeader, 0x8103, "dc8103"}, {"array", AppendArrayHeader, 0x81020384, "dd81020384"},
		{"map", AppendMapHeader, 0x8103, "de8103"}, {"map", AppendMapHeader, 0x81020384, "df81020384"},
		{"str", str, 0x8103, "da8103"}, {"bin", bin, 0x8103, "c58103"}, {"str", str, 0x00810203, "db00810203"},
	} {
		if got := hex.EncodeToString(c.f(nil, c.n)); got != c.want {
			t.Errorf("%s of %d = %s, want %s", c.name, c.n, got, c.want)
		}
	}
	if got := hex.EncodeToString(AppendBool(AppendBool(AppendNil(nil), true), false)); got != "c0c3c2" {
		t.Error(got)
	}
	if got := hex.EncodeToString(AppendFloat(nil, 1.5)); got != "cb3ff8000000000000" {
		t.Error(got)
	}
}

// What is appended is what another implementation reads.
func TestAppendIsReadByOthers(t *testing.T) {
	var p []byte
	want := []any{uint64(math.MaxUint64), int8(-7), "text", []byte{1, 2}, nil, true, false, 2.25}
	p = AppendArrayHeader(p, len(want))
	p = AppendUint(p, math.MaxUint64)
	p = AppendInt(p, -7)
	p = AppendStr(p, "text")
	p = AppendBin(p, []byte{1, 2})
	p = AppendFloat(AppendBool(AppendBool(AppendNil(p), true), false), 2.25)
	d := msgpack.NewDecoder(bytes.NewReader(p))
	n, err := d.DecodeArrayLen()
	if err != nil || n != len(want) {
		t.Fatal(n, err)
	}
	for i, w := range want {
		got, err := d.DecodeInterface()
		if err != nil {
			t.Fatal(err)
		}
		if b, ok := w.([]byte); ok {
			if !bytes.Equal(got.([]byte), b) {
				t.Errorf("element %d: %v", i, got)
			}
		} else if got != w {
			t.Errorf("element %d: %v (%T), want %v", i, got, got, w)
		}
	}
}

func TestIntegers(t *testing.T) {
	for _, c := range []struct {
		hex     string
		bits    uint64
		neg     bool
		uintOK  bool
		int64OK bool
	}{
		{"00", 0, false, true, true},
		{"7f", 127, false, true, true},
		{"ff", math.MaxUint64, true, false, true},
		{"e0", uint64(math.MaxUint64 - 31), true, false, true},
		{"cc80", 128, false, true, true},
		{"cd8000", 32768, false, true, true},
		{"ce80000000", 1 << 31, false, true, true},
		{"cf7fffffffffffffff", math.MaxInt64, false, true, true},
		{"cf8000000000000000", 1 << 63, false, true, false},
		{"cfffffffffffffffff", math.MaxUint64, false, true, false},
		{"d005", 5, false, true, true},
		{"d080", uint64(math.MaxUint64 - 127), true, false, true},
		{"d10006", 6, false, true, true},
		{"d1ffff", math.MaxUint64, true, false, true},
		{"d200000007", 7, false, true, true},
		{"d2ffffffff", math.MaxUint64, true, false, true},
		{"d30000000000000008", 8, false, true, true},
		{"d3ffffffffffffffff", math.MaxUint64, true, false, true},
	} {
		p := unhex(t, c.hex)
		r := NewReader(p)
		bits, neg, ok := r.Bits64()
		if bits != c.bits || neg != c.neg || !ok || r.Left() != 0 {
			t.Errorf("%s: Bits64 = %d %v %v, %d left", c.hex, bits, neg, ok, r.Left())
		}
		r.Reset(p)
		u, ok := r.Uint()
		if ok != c.uintOK || ok && (u != c.bits || r.Left() != 0) || !ok && (r.Off() != 0 || r.Failed()) {
			t.Errorf("%s: Uint = %d %v at %d", c.hex, u, ok, r.Off())
		}
		r.Reset(p)
		i, ok := r.Int()
		if ok != c.int64OK || ok && (uint64(i) != c.bits || r.Left() != 0) || !ok && (r.Off() != 0 || r.Failed()) {
			t.Errorf("%s: Int = %d %v at %d", c.hex, i, ok, r.Off())
		}
	}
}

// sampleValues has one value of every encoding that there is.
var sampleValues = []struct {
	hex  string
	kind Kind
}{
	{"05", Int}, {"e5", Int}, {"cc01", Int}, {"cd0102", Int}, {"ce01020304", Int}, {"cf0102030405060708", Int},
	{"d001", Int}, {"d10102", Int}, {"d201020304", Int}, {"d30102030405060708", Int},
	{"c0", Nil}, {"c2", Bool}, {"c3", Bool}, {"ca3fc00000", Float}, {"cb3ff8000000000000", Float},
	{"a0", Str}, {"a3616263", Str}, {"d903616263", Str}, {"da0003616263", Str}, {"db00000003616263", Str},
	{"d900", Str}, {"da0000", Str}, {"db00000000", Str}, {"c400", Bin}, {"c50000", Bin}, {"c600000000", Bin},
	{"c70001", Ext}, {"c8000001", Ext}, {"c90000000001", Ext}, {"dc0000", Array}, {"dd00000000", Array}, {"de0000", Map}, {"df00000000", Map},
	{"c403616263", Bin}, {"c50003616263", Bin}, {"c600000003616263", Bin},
	{"90", Array}, {"920102", Array}, {"dc00020102", Array}, {"dd000000020102", Array},
	{"80", Map}, {"820102a0c0", Map}, {"de00020102a0c0", Map}, {"df000000020102a0c0", Map},
	{"d40199", Ext}, {"d5010203", Ext}, {"d60102030405", Ext}, {"d7010203040506070809", Ext},
	{"d80102030405060708090a0b0c0d0e0f1011", Ext}, {"c7020a0102", Ext}, {"c800020a0102", Ext}, {"c9000000020a0102", Ext},
}

// Every first byte there is.
func TestKinds(t *testing.T) {
	for _, c := range []struct {
		from, to int
		kind     Kind
	}{
		{0x00, 0x7f, Int}, {0x80, 0x8f, Map}, {0x90, 0x9f, Array}, {0xa0, 0xbf, Str}, {0xc0, 0xc0, Nil}, {0xc1, 0xc1, None},
		{0xc2, 0xc3, Bool}, {0xc4, 0xc6, Bin}, {0xc7, 0xc9, Ext}, {0xca, 0xcb, Float}, {0xcc, 0xd3, Int}, {0xd4, 0xd8, Ext},
		{0xd9, 0xdb, Str}, {0xdc, 0xdd, Array}, {0xde, 0xdf, Map}, {0xe0, 0xff, Int},
	} {
		for b := c.from; b <= c.to; b++ {
			if r := NewReader([]byte{byte(b)}); r.Kind() != c.kind {
				t.Errorf("%#x is of kind %d, want %d", b, r.Kind(), c.kind)
			}
		}
	}
}

// Every read of every value: the fitting ones take it whole, the others leave
// it alone, and cut off at any byte none of them reads beyond the cut.
func TestReadsOfEveryValue(t *testing.T) {
	reads := []struct {
		kinds []Kind
		f     func(*Reader) bool
	}{
		{[]Kind{Nil}, func(r *Reader) bool { return r.Nil() }},
		{[]Kind{Bool}, func(r *Reader) bool { _, ok := r.Bool(); return ok }},
		{[]Kind{Int}, func(r *Reader) bool { _, _, ok := r.Bits64(); return ok }},
		{[]Kind{Float}, func(r *Reader) bool { _, ok := r.Float(); return ok }},
		{[]Kind{Str}, func(r *Reader) bool { _, ok := r.Str(); return ok }},
		{[]Kind{Bin}, func(r *Reader) bool { _, ok := r.Bin(); return ok }},
		{[]Kind{Str, Bin}, func(r *Reader) bool { _, ok := r.Text(); return ok }},
		{[]Kind{Array}, func(r *Reader) bool { n, ok := r.Array(); return ok && r.SkipN(n) }},
		{[]Kind{Map}, func(r *Reader) bool { n, ok := r.Map(); return ok && r.SkipN(2*n) }},
		{[]Kind{Int}, func(r *Reader) bool { return r.Ints(make([]uint64, 1)) == 1 }},
		{[]Kind{Nil, Bool, Int, Float, Str, Bin, Array, Map, Ext}, func(r *Reader) bool { return r.Skip() }},
	}
	for _, s := range sampleValues {
		p := append(unhex(t, s.hex), 0x2a)
		size := len(p) - 1
		if r := NewReader(p); r.Kind() != s.kind {
			t.Errorf("%s: Kind %d", s.hex, r.Kind())
		}
		for i, read := range reads {
			fits := false
			for _, k := range read.kinds {
				fits = fits || k == s.kind
			}
			r := NewReader(p)
			if ok := read.f(&r); ok != fits || r.Failed() {
				t.Fatalf("%s: read %d: ok %v, err %v", s.hex, i, ok, r.Err())
			}
			if fits && r.Off() != size || !fits && r.Off() != 0 {
				t.Fatalf("%s: read %d stopped at %d", s.hex, i, r.Off())
			}
			for cut := range size {
				r.Reset(p[:cut:cut])
				if read.f(&r) {
					t.Fatalf("%s cut to %d: read %d takes it", s.hex, cut, i)
				}
			}
		}
		for cut := range size {
			r := NewReader(p[:cut:cut])
			if r.Skip() || !errors.Is(r.Err(), ErrTruncated) {
				t.Fatalf("%s cut to %d: %v", s.hex, cut, r.Err())
			}
		}
	}
}

func TestTexts(t *testing.T) {
	for _, h := range []string{"a3616263", "d903616263", "da0003616263", "db00000003616263"} {
		r := NewReader(unhex(t, h))
		if v, ok := r.Str(); !ok || string(v) != "abc" || cap(v) != 3 {
			t.Error(h, v)
		}
	}
	for _, h := range []string{"c403616263", "c50003616263", "c600000003616263"} {
		r := NewReader(unhex(t, h))
		if v, ok := r.Bin(); !ok || string(v) != "abc" || cap(v) != 3 {
			t.Error(h, v)
		}
	}
	r := NewReader(unhex(t, "a0"))
	if v, ok := r.Text(); !ok || v == nil {
		t.Error("an empty text must differ from none")
	}
	r.Reset(unhex(t, "ca3fc00000cb3ff8000000000000c3c2"))
	f, _ := r.Float()
	g, _ := r.Float()
	yes, ok1 := r.Bool()
	no, ok2 := r.Bool()
	if f != 1.5 || g != 1.5 || !yes || no || !ok1 || !ok2 {
		t.Error(f, g, yes, no)
	}
}

// A header may not announce what the input cannot hold.
func TestCountsAreBounded(t *testing.T) {
	for _, c := range []struct {
		hex string
		ok  bool
	}{
		{"dd7fffffff01", false}, {"ddffffffff", false}, {"9201", false}, {"920101", true}, {"dc0003010101", true},
		{"dc00040101", false}, {"df7fffffff0101", false}, {"8201010101", true}, {"82010101", false}, {"81010101", true},
		{"dd0000", false}, {"dc", false},
	} {
		r := NewReader(unhex(t, c.hex))
		_, a := r.Array()
		_, m := r.Map()
		if (a || m) != c.ok || c.ok == errors.Is(r.Err(), ErrTruncated) {
			t.Errorf("%s: %v %v %v", c.hex, a, m, r.Err())
		}
		r.Reset(unhex(t, c.hex))
		if !c.ok && (r.Skip() || !errors.Is(r.Err(), ErrTruncated)) {
			t.Errorf("%s is skipped: %v", c.hex, r.Err())
		}
	}
}

func TestBrokenStaysBroken(t *testing.T) {
	r := NewReader([]byte{0x01, 0xc1, 0x01})
	if !r.Skip() || r.Err() != nil {
		t.Fatal("the first value is sound")
	}
	if r.Kind() != None || r.Skip() {
		t.Fatal("0xc1 is no value")
	}
	var e *Error
	if err := r.Err(); !errors.As(err, &e) || !errors.Is(err, ErrReserved) || e.Off != 1 ||
		err.Error() != "msgpack: reserved byte at offset 1" {
		t.Fatal(err)
	}
	r.Seek(2)
	_, _, isInt := r.Bits64()
	_, isArray := r.Array()
	if isInt || isArray || r.Skip() || r.SkipN(0) || r.Nil() || r.Kind() != None || !r.Failed() ||
		r.Ints(make([]uint64, 1)) != 0 || r.Uint32s(make([]byte, 4)) != 0 {
		t.Fatal("a broken Reader reads on")
	}
	r.Reset(nil)
	if r.Failed() || r.Kind() != None || r.Failed() {
		t.Fatal("looking at an empty input breaks nothing")
	}
	if r.Nil() || !errors.Is(r.Err(), ErrTruncated) {
		t.Fatal("reading from it does")
	}
}

func TestRaw(t *testing.T) {
	r := NewReader(unhex(t, "01920203a161"))
	r.Skip()
	at := r.Off()
	r.Skip()
	if got := hex.EncodeToString(r.Raw(at)); got != "920203" || r.Left() != 2 {
		t.Error(got, r.Left())
	}
}

// nested is depth containers inside each other.
func nested(depth int, tag ...byte) []byte {
	return append(bytes.Repeat(tag, depth), 0x01)
}

func TestDepth(t *testing.T) {
	for _, depth := range []int{0, 1, 15, 16, 17, 18, 200, MaxDepth - 1, MaxDepth} {
		for _, p := range [][]byte{nested(depth, 0x91), nested(depth, 0x81, 0x01), nested(depth, 0x92, 0xc0)} {
			r := NewReader(append(p, 0x2a))
			if !r.Skip() || r.Left() != 1 {
				t.Errorf("depth %d: %v, %d left", depth, r.Err(), r.Left())
			}
		}
	}
	for _, depth := range []int{MaxDepth + 1, MaxDepth + 2, 8 << 20} {
		r := NewReader(nested(depth, 0x91))
		var e *Error
		if r.Skip() || !errors.Is(r.Err(), ErrTooDeep) || !errors.As(r.Err(), &e) || e.Off != MaxDepth {
			t.Errorf("depth %d: %v", depth, r.Err())
		}
	}
	// Siblings do not add up.
	p := AppendArrayHeader(nil, 3)
	for range 3 {
		p = append(p, nested(MaxDepth-1, 0x91)...)
	}
	if r := NewReader(p); !r.Skip() || r.Left() != 0 {
		t.Error(r.Err())
	}
}

func TestSkipN(t *testing.T) {
	var p []byte
	for _, s := range sampleValues {
		p = append(p, unhex(t, s.hex)...)
	}
	r := NewReader(append(p, 0x2a))
	if !r.SkipN(len(sampleValues)) || r.Left() != 1 {
		t.Error(r.Err(), r.Left())
	}
	if r.SkipN(2) {
		t.Error("one value only was left")
	}
}
