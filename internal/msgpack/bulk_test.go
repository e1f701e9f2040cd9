package msgpack

import (
	"encoding/binary"
	"math/rand/v2"
	"testing"
)

// randomInts is a run of integers in all encodings, not only the smallest.
func randomInts(rng *rand.Rand, n int, max uint64) (p []byte, want []uint64) {
	for range n {
		v := rng.Uint64() >> rng.IntN(64) % max
		want = append(want, v)
		switch k := rng.IntN(12); {
		case k == 0:
			p = binary.BigEndian.AppendUint64(append(p, 0xcf), v)
		case k == 1 && v < 1<<32:
			p = binary.BigEndian.AppendUint32(append(p, 0xce), uint32(v))
		case k == 2 && v < 1<<31:
			p = binary.BigEndian.AppendUint32(append(p, 0xd2), uint32(v))
		case k == 3 && v < 1<<16:
			p = binary.BigEndian.AppendUint16(append(p, 0xcd), uint16(v))
		case k == 4 && v < 1<<15:
			p = binary.BigEndian.AppendUint16(append(p, 0xd1), uint16(v))
		case k == 5 && v < 1<<63:
			p = binary.BigEndian.AppendUint64(append(p, 0xd3), v)
		default:
			p = AppendUint(p, v)
		}
	}
	return p, want
}

// Bulk reads agree with single ones, stop where those do, and at every cut.
func TestBulkReads(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	for round := range 2000 {
		n := rng.IntN(40)
		p, want := randomInts(rng, n, 1<<32)
		stop := [][]byte{nil, {0xc0}, {0xff}, {0xd3, 0xff, 0, 0, 0, 0, 0, 0, 1}, {0xcf, 0, 0, 0, 1, 0, 0, 0, 0}, {0xa1, 'x'}, {0x91, 1}, {0xcd, 1}, {0xc1}}
		end := len(p)
		p = append(p, stop[round%len(stop)]...)

		dst := make([]byte, 4*(n+3))
		r := NewReader(p)
		if got := r.Uint32s(dst); got != n || r.Off() != end || r.Failed() {
			t.Fatalf("%x: Uint32s %d of %d, at %d of %d, %v", p, got, n, r.Off(), end, r.Err())
		}
		for i, v := range want {
			if got := binary.LittleEndian.Uint32(dst[4*i:]); uint64(got) != v {
				t.Fatalf("%x: token %d is %d, want %d", p, i, got, v)
			}
		}
		// No more than there is room for.
		if k := n / 2; k > 0 {
			r.Reset(p)
			if got := r.Uint32s(dst[:4*k]); got != k {
				t.Fatalf("Uint32s %d of %d", got, k)
			}
			if rest := r.Uint32s(dst); rest != n-k {
				t.Fatalf("then %d of %d", rest, n-k)
			}
		}
		r.Reset(p[:end:end])
		ints := make([]uint64, n)
		if got := r.Ints(ints); got != n || r.Left() != 0 {
			t.Fatalf("%x: Ints %d of %d", p, got, n)
		}
		for i, v := range want {
			if ints[i] != v {
				t.Fatalf("%x: int %d is %d, want %d", p, i, ints[i], v)
			}
		}
		cut := rng.IntN(end + 1)
		short := NewReader(p[:cut:cut])
		whole := 0
		for {
			if _, ok := short.Uint(); !ok {
				break
			}
			whole++
		}
		r.Reset(p[:cut:cut])
		if got := r.Uint32s(dst); got != whole || r.Failed() {
			t.Fatalf("%x: Uint32s %d of %d", p[:cut], got, whole)
		}
		r.Reset(p[:cut:cut])
		if got := r.Ints(make([]uint64, n+1)); got != whole || r.Failed() {
			t.Fatalf("%x: Ints %d of %d", p[:cut], got, whole)
		}
	}
}

func TestIntsOfEitherSign(t *testing.T) {
	r := NewReader([]byte{0xd3, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xfe, 0xff, 0xcf, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xc4, 1, 9})
	dst := make([]uint64, 4)
	if n := r.Ints(dst); n != 3 || dst[0] != 1<<64-2 || dst[1] != 1<<64-1 || dst[2] != 1<<64-1 || r.Kind() != Bin {
		t.Error(n, dst, r.Kind())
	}
}

// BenchmarkUint32s reads many different lists in turn: with a single one the
// branch predictor learns its order by heart.
func BenchmarkUint32s(b *testing.B) {
	rng := rand.New(rand.NewPCG(1, 2))
	lists := make([][]byte, 512)
	for i := range lists {
		for range 1024 {
			lists[i] = AppendUint(lists[i], rng.Uint64N(150000))
		}
	}
	dst := make([]byte, 4096)
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		r := NewReader(lists[i%len(lists)])
		if r.Uint32s(dst) != 1024 {
			b.Fatal("short")
		}
	}
}
