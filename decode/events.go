package decode

import (
	"bytes"
	"unicode/utf8"

	"github.com/kvrelay/kvrelay/internal/msgpack"
)

// readEvent reads one event. One that is malformed is passed over as a whole;
// its neighbours lose nothing by it.
func (b *Batch) readEvent() {
	start, mark := b.r.Off(), b.mark()
	ev := b.place()
	var name []byte
	p := wrongType.of(fEvent)
	switch b.r.Kind() {
	case msgpack.Array:
		name, p = b.readTuple(ev)
	case msgpack.Map:
		ev.IsMap = true
		name, p = b.readNamed(ev, &mark)
	}
	if b.r.Failed() {
		return
	}
	if p != 0 {
		b.r.Seek(start)
		if !b.r.Skip() {
			return
		}
		b.back(mark)
		ev.Type = Malformed
	}
	if b.events.used > FoldAfter && b.fold(ev, p) {
		return
	}
	if p != 0 {
		*ev = Event{Type: Malformed, IsMap: ev.IsMap, Name: name, Problem: p.String()}
	}
}

// place returns an empty Event to fill.
func (b *Batch) place() *Event {
	i := b.events.used
	b.events.used++
	ev := &b.spare
	if i < len(b.events.buf) {
		ev = &b.events.buf[i]
		b.events.high = max(b.events.high, i+1)
	}
	*ev = Event{}
	return ev
}

// typeOf is the type that a tag names.
func typeOf(tag []byte) Type {
	switch string(tag) {
	case "BlockStored":
		return Stored
	case "BlockRemoved":
		return Removed
	case "AllBlocksCleared":
		return Cleared
	case "Ignored":
		return Ignored
	}
	return Unknown
}

// text reads a string, or bytes that stand for one; nil yields nil.
func (b *Batch) text() ([]byte, cause) {
	v, ok := b.r.Text()
	switch {
	case !ok && b.r.Nil():
		return nil, good
	case !ok:
		return nil, wrongType
	case !valid(v):
		return nil, badText
	}
	return v, good
}

// key reads the key of a map, or a tag. Of what is no text, nothing is read.
func (b *Batch) key() ([]byte, cause) {
	k, ok := b.r.Text()
	switch {
	case !ok:
		return nil, wrongType
	case !valid(k):
		return nil, badText
	}
	return k, good
}

// valid is utf8.Valid, faster for the short ASCII names that texts nearly
// always are.
func valid(v []byte) bool {
	return len(v) <= 16 && ascii(v) || utf8.Valid(v)
}

// folds knows where the events lie that later ones of a batch may join.
type folds struct {
	on    bool
	bad   [numProblems]int32 // index + 1
	ign   int32
	names [8]struct { // the last names seen, so that few tags in any order fold
		name []byte
		at   int32
	}
	next int
}

func (f *folds) forget() {
	if f.on {
		*f = folds{}
	}
}

// fold lets the last event of the batch join an earlier one of its like, if it
// is of the kinds that Event.Folded names and there is one.
func (b *Batch) fold(ev *Event, p problem) bool {
	f := &b.folds
	if !f.on {
		*f = folds{on: true}
	}
	var first *int32
	switch ev.Type {
	case Malformed:
		first = &f.bad[p]
	case Ignored:
		first = &f.ign
	case Unknown:
		first = f.named(ev.Name)
	default:
		return false
	}
	if *first == 0 {
		*first = int32(b.events.used)
		return false
	}
	b.events.used--
	if i := int(*first) - 1; i < len(b.events.buf) {
		b.events.buf[i].Folded++
	}
	return true
}

// named is where the index of the first Unknown of a name stands. The oldest
// of eight names gives way to a new one, whose events then take new places.
func (f *folds) named(name []byte) *int32 {
	for i := range f.names {
		if n := &f.names[i]; n.at > 0 && bytes.Equal(n.name, name) {
			return &n.at
		}
	}
	n := &f.names[f.next]
	f.next = (f.next + 1) % len(f.names)
	n.name, n.at = name, 0
	return &n.at
}
