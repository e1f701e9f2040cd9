package convert

import "testing"

// An arena that one giant batch left behind is given back, whichever it is; one
// of exactly the size that may stay is kept.
func TestResetGivesLargeArenasBack(t *testing.T) {
	for name, grow := range map[string]func(o *Output, n int){
		"blocks":  func(o *Output, n int) { o.blocks = make([]Block, 0, n) },
		"hashes":  func(o *Output, n int) { o.hashes = make([]uint64, 0, n) },
		"events":  func(o *Output, n int) { o.Events = make([]RouterEvent, 0, n) },
		"objects": func(o *Output, n int) { o.objects = make([]MMObject, 0, n) },
		"offsets": func(o *Output, n int) { o.offsets = make([][2]uint64, 0, n) },
		"text":    func(o *Output, n int) { o.text = make([]byte, 0, n) },
	} {
		kept := func(o *Output) int {
			return cap(o.blocks) + cap(o.hashes) + cap(o.Events) + cap(o.objects) + cap(o.offsets) + cap(o.text)
		}
		var o Output
		grow(&o, keepBlocks)
		if o.Reset(); kept(&o) != keepBlocks {
			t.Errorf("%s: %d kept of %d", name, kept(&o), keepBlocks)
		}
		grow(&o, keepBlocks+1)
		if o.Reset(); kept(&o) != 0 {
			t.Errorf("%s: %d kept of too many", name, kept(&o))
		}
	}
}

// After Reset an Output is as new, but for its memory.
func TestResetForgetsEverything(t *testing.T) {
	x := newTester(t, Config{})
	x.out.Reset()
	x.quiet(stored(0, []uint64{1, 2}), removed(7), removed(9))
	x.out.Notices = append(x.out.Notices, Notice{Kind: NoticeUntrusted})
	o := &x.out
	o.Reset()
	if len(o.Events)+len(o.Notices)+len(o.spans)+len(o.blocks)+len(o.hashes)+len(o.objects)+len(o.offsets)+len(o.text)+o.settled+o.run.n+int(o.run.kind) != 0 {
		t.Errorf("%+v", o)
	}
	if o.Notices[:1][0] != (Notice{}) {
		t.Error("a notice is kept behind the end")
	}
	if cap(o.blocks) == 0 || cap(o.hashes) == 0 || cap(o.Events) == 0 {
		t.Error("Reset gives small arenas back")
	}
}
