package convert

import (
	"encoding/binary"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/zeebo/xxh3"

	"github.com/kvrelay/kvrelay/decode"
	"github.com/kvrelay/kvrelay/internal/capture"
)

const captureDir = "../integration/testdata/captures"

// relayed converts a capture as the relay would.
type relayed struct {
	rank *Rank
	fold picture
	b    decode.Batch
	out  Output
}

func newRelayed(c Config) *relayed { return &relayed{rank: New(c), fold: picture{}} }

// batch converts one payload. The Output is reused, so what was folded before
// must not depend on it.
func (r *relayed) batch(t testing.TB, payload []byte) {
	t.Helper()
	if err := r.b.Decode(payload); err != nil {
		t.Fatalf("decoding: %v", err)
	}
	r.out.Reset()
	r.rank.Convert(&r.b, &r.out)
	r.fold.apply(r.out.Events)
}

// loadCapture reads a capture and its messages' payloads by seq.
func loadCapture(t testing.TB, path string) (*capture.Capture, []uint64) {
	t.Helper()
	c, err := capture.Load(path)
	if err != nil {
		t.Fatal(err)
	}
	seqs := make([]uint64, len(c.Messages))
	for i, m := range c.Messages {
		if len(m.Frames) != 3 || len(m.Frames[1]) != 8 {
			t.Fatalf("%s: message %d is not topic, seq, payload", path, i)
		}
		seqs[i] = binary.BigEndian.Uint64(m.Frames[1])
	}
	return c, seqs
}

// mainGroups are the groups of a capture that are routable, with the tiers that
// truth tells: "0", "0/CPU" …
func mainGroups(m *capture.Meta) map[string]bool {
	main := map[string]bool{}
	for i, g := range m.Groups {
		kind, _, _ := strings.Cut(g, ":")
		if kind == "full" || kind == "mla" {
			main[string(rune('0'+i))] = true
		}
	}
	if len(m.Groups) == 0 {
		main["0"] = true
	}
	return main
}

// truthOf is the engine's own cache in its main groups.
func truthOf(t testing.TB, m *capture.Meta, truth capture.Truth) map[placed]bool {
	t.Helper()
	main := mainGroups(m)
	held := map[placed]bool{}
	for group := range truth {
		number, medium, _ := strings.Cut(group, "/")
		tier, ok := tierOf([]byte(medium))
		if !ok {
			t.Fatalf("truth of group %q", group)
		}
		hashes, err := truth.Hashes(group)
		if err != nil {
			t.Fatal(err)
		}
		for h := range hashes {
			if main[number] {
				held[placed{tier, h}] = true
			}
		}
	}
	return held
}

func eachCapture(t *testing.T, f func(t *testing.T, name string, c *capture.Capture, seqs []uint64)) {
	t.Helper()
	paths, err := filepath.Glob(captureDir + "/*.jsonl.gz")
	if err != nil || len(paths) < 20 {
		t.Fatalf("%d captures in %s, want the whole set (%v)", len(paths), captureDir, err)
	}
	for _, path := range paths {
		name := strings.TrimSuffix(filepath.Base(path), ".jsonl.gz")
		t.Run(name, func(t *testing.T) {
			c, seqs := loadCapture(t, path)
			f(t, name, c, seqs)
		})
	}
}

// TestCaptures converts every recorded engine stream: no block that the engine
// does not hold, none missing that it does, at the end and at each checkpoint.
func TestCaptures(t *testing.T) {
	eachCapture(t, func(t *testing.T, name string, c *capture.Capture, seqs []uint64) {
		// Most of sha256-holes was never sent, and hybrid-3g has partial stores of
		// another block size: of these, nothing false is all that can be asked.
		partial := strings.HasSuffix(name, "sha256-holes") || strings.HasSuffix(name, "hybrid-3g")
		if len(c.Meta.Incarnations) > 0 {
			for _, inc := range c.Meta.Incarnations {
				r := newRelayed(Config{})
				for i := inc.FirstMessage; i < inc.FirstMessage+*inc.Messages; i++ {
					r.batch(t, c.Messages[i].Frames[2])
				}
				compare(t, r, truthOf(t, c.Meta, inc.Truth), partial)
			}
			return
		}
		r := newRelayed(Config{})
		checks := c.Meta.Checkpoints
		for i, m := range c.Messages {
			for len(checks) > 0 && checks[0].AfterSeq < int64(seqs[i]) {
				if !partial {
					checkpoint(t, r, c.Meta, checks[0])
				}
				checks = checks[1:]
			}
			r.batch(t, m.Frames[2])
			if drops := r.rank.Stats().Drops(ReasonMalformed); drops > 0 {
				t.Fatalf("seq %d: %d malformed events", seqs[i], drops)
			}
		}
		for _, k := range checks {
			if !partial {
				checkpoint(t, r, c.Meta, k)
			}
		}
		compare(t, r, truthOf(t, c.Meta, c.Meta.Truth), partial)
		samePicture(t, r.rank, r.fold)

		s := r.rank.Stats()
		if untrusted := strings.HasPrefix(name, "sglang-0.4.") || strings.HasPrefix(name, "sglang-0.5.2-"); s.Untrusted != untrusted {
			t.Errorf("Untrusted = %t, want %t", s.Untrusted, untrusted)
		}
		if full := strings.Contains(name, "full-report"); s.FullReporting != full {
			t.Errorf("FullReporting = %t, want %t", s.FullReporting, full)
		}
		if want := uint64(c.Meta.BlockSize[0]); s.BlockSize != want && !strings.HasSuffix(name, "sha256-holes") {
			t.Errorf("learned block size %d, want %d", s.BlockSize, want)
		}
		accounted(t, s)
	})
}

func compare(t *testing.T, r *relayed, truth map[placed]bool, partial bool) {
	t.Helper()
	missing, wrong := 0, 0
	for k := range truth {
		if _, ok := r.fold[k]; !ok {
			missing++
		}
	}
	for k := range r.fold {
		if !truth[k] {
			wrong++
		}
	}
	if wrong > 0 || missing > 0 && !partial {
		t.Errorf("%d published, %d of the engine's missing, %d false", len(r.fold), missing, wrong)
	}
}

// checkpoint compares the device tier with the engine's digest of it. Groups
// are one to consumers, so captures with several main groups would need more.
func checkpoint(t *testing.T, r *relayed, m *capture.Meta, k capture.Checkpoint) {
	t.Helper()
	main := mainGroups(m)
	for group, d := range k.Groups {
		if !main[group] {
			continue
		}
		want, err := d.XOR()
		if err != nil {
			t.Fatal(err)
		}
		var xor uint64
		n := 0
		for p := range r.fold {
			if p.tier == Device {
				xor ^= p.hash
				n++
			}
		}
		if n != d.Hashes || xor != want {
			t.Errorf("after seq %d: %d hashes, XOR %x; want %d, %x", k.AfterSeq, n, xor, d.Hashes, want)
		}
	}
}

// queried are the captures whose prompts can be looked up by tokens_hash alone;
// why the others cannot is in the documentation.
var queried = []string{
	"vllm-*-base", "vllm-*-evict", "vllm-*-dup", "vllm-*-clear", "vllm-*-bytes", "vllm-*-dp1-topic",
	"vllm-*-full-report", "vllm-*-offload-cpu*", "sglang-0.5.18-*", "sglang-0.5.23-page16", "sglang-0.5.23-eagle",
}

// TestQueries looks prompts up in an index over the published tokens_hashes, as
// a router does: it finds what the engine itself would have found.
func TestQueries(t *testing.T) {
	eachCapture(t, func(t *testing.T, name string, c *capture.Capture, _ []uint64) {
		if !slices.ContainsFunc(queried, func(p string) bool { ok, _ := filepath.Match(p, name); return ok }) {
			return
		}
		r := newRelayed(Config{})
		for _, m := range c.Messages {
			r.batch(t, m.Frames[2])
		}
		// children: (parent or root, tokens_hash) → block, on the device tier.
		type edge struct {
			parent uint64
			root   bool
			tokens uint64
		}
		children := map[edge]uint64{}
		for k, v := range r.fold {
			if k.tier == Device {
				children[edge{v.parent, !v.hasParent, v.tokens}] = k.hash
			}
		}
		size := int(c.Meta.BlockSize[0])
		window := size
		if strings.HasSuffix(name, "-eagle") {
			window++
		}
		if len(c.Meta.Queries) == 0 {
			t.Fatal("no queries")
		}
		hits := 0
		for i, q := range c.Meta.Queries {
			at := edge{root: true}
			hit := 0
			for off := 0; off+window <= len(q.TokenIDs); off += size {
				at.tokens = tokensHash(q.TokenIDs[off : off+window])
				h, ok := children[at]
				if !ok {
					break
				}
				at.parent, at.root = h, false
				hit += size
			}
			// An engine never hits the whole prompt.
			if strings.HasPrefix(name, "vllm") {
				hit = min(hit, (len(q.TokenIDs)-1)/size*size)
			}
			if hit != q.HitTokens {
				t.Errorf("query %d of %d tokens: %d hit, the engine says %d", i, len(q.TokenIDs), hit, q.HitTokens)
			}
			hits += hit
		}
		if hits == 0 {
			t.Error("nothing hit: the queries test nothing")
		}
	})
}

func tokensHash(tokens []uint32) uint64 {
	var b []byte
	for _, t := range tokens {
		b = binary.LittleEndian.AppendUint32(b, t)
	}
	return xxh3.HashSeed(b, 1337)
}
