package check

import (
	"bytes"
	"strconv"

	"github.com/zeebo/xxh3"

	"github.com/kvrelay/kvrelay/convert"
	"github.com/kvrelay/kvrelay/decode"
)

// facts counts how s.batch is written.
func (s *Stream) facts() {
	w, b := &s.Wire, &s.batch
	if b.IsMap {
		w.BatchMaps++
	} else {
		w.BatchArrays++
	}
	switch {
	case b.HasRank:
		w.RankNamed++
	case !b.BadRank:
		w.RankAbsent++
	}
	if !b.HasTS {
		w.NoTS++
	}
	if len(b.Events) == 0 {
		w.Empty++
	}
	for i := range b.Events {
		s.event(&b.Events[i])
	}
}

func (s *Stream) event(ev *decode.Event) {
	w, n := &s.Wire, 1+uint64(ev.Folded)
	if ev.IsMap {
		w.EventMaps += n
	} else {
		w.EventArrays += n
	}
	switch ev.Type {
	case decode.Malformed:
		count(w.Malformed, ev.Problem, n)
		return
	case decode.Unknown:
		count(w.Unknown, plain(ev.Name), n)
		return
	case decode.Ignored:
		w.Ignored += n
		return
	case decode.Cleared:
		w.Cleared++
		return
	case decode.Removed:
		w.Removed++
	case decode.Stored:
		w.Stored++
		s.stored(ev)
	}
	if ev.BytesHash {
		w.HashBytes++
	} else if len(ev.Hashes) > 0 {
		w.HashInts++
	}
	s.group(ev)
	s.medium(ev)
}

func (s *Stream) stored(ev *decode.Event) {
	w := &s.Wire
	if !ev.HasParent {
		w.Roots++
	}
	if ev.Tokens.Len() == 0 {
		w.HashOnly++
	} else {
		count(w.BlockSizes, strconv.FormatUint(ev.BlockSize, 10), 1)
	}
	if ev.Pairs != decode.NoPairs {
		w.Pairs++
	}
	if ev.LoraID > 0 || len(ev.LoraName) > 0 {
		w.LoRA++
	}
	if len(ev.LoraName) > 0 && len(w.adapters) < maxNames {
		w.adapters[xxh3.Hash(ev.LoraName)] = struct{}{}
	}
	salted, text, mm := len(ev.CacheSalt) > 0 || len(ev.SlotSalt) > 0, false, len(ev.MM) > 0
	for _, k := range ev.ExtraKeys {
		switch {
		case bytes.HasPrefix(k.Text, []byte("dynamo-cache-salt:")):
			salted = true
		case isDigest(k.Text) || k.Pair:
			mm = true
		case bytes.Equal(k.Text, ev.LoraName):
		default:
			text = true
		}
	}
	for _, is := range []struct {
		yes bool
		n   *uint64
	}{{salted, &w.Salted}, {text, &w.ExtraText}, {mm, &w.Multimodal}, {len(ev.SessionID) > 0, &w.Sessions}, {ev.Reused, &w.Reused}} {
		if is.yes {
			*is.n++
		}
	}
}

// isDigest says whether a key is the digest of a multimodal item: 16 hex digits
// and 48 zeroes.
func isDigest(text []byte) bool {
	if len(text) != 64 || string(text[16:]) != "000000000000000000000000000000000000000000000000" {
		return false
	}
	_, err := strconv.ParseUint(string(text[:16]), 16, 64)
	return err == nil
}

func (s *Stream) group(ev *decode.Event) {
	kind := ""
	if ev.HasKind {
		kind = plain(ev.Kind)
	}
	var g *Group
	for i := range s.Wire.Groups {
		at := &s.Wire.Groups[i]
		sameIndex := (at.Index != nil) == ev.HasGroup && (at.Index == nil || *at.Index == ev.Group)
		if sameIndex && (kind == "" || at.Kind == "" || at.Kind == kind) {
			g = at
			break
		}
	}
	if g == nil {
		if len(s.Wire.Groups) == maxNames {
			return
		}
		s.Wire.Groups = append(s.Wire.Groups, Group{BlockSizes: map[string]uint64{}})
		g = &s.Wire.Groups[len(s.Wire.Groups)-1]
		if ev.HasGroup {
			index := ev.Group
			g.Index = &index
		}
		g.Routable = !ev.HasGroup || ev.Group == 0
	}
	if kind != "" && g.Kind == "" {
		g.Kind = kind
		// Asked of the converter, so that there is one list of kinds.
		g.Routable = reasonAlone(convert.Config{}, &decode.Event{Type: decode.Removed, Hashes: []uint64{1}, Kind: ev.Kind, HasKind: true}) == convert.NumReasons
	}
	if ev.Type == decode.Removed {
		g.Removes++
		return
	}
	g.Stores++
	if ev.Tokens.Len() > 0 {
		count(g.BlockSizes, strconv.FormatUint(ev.BlockSize, 10), 1)
	}
}

func (s *Stream) medium(ev *decode.Event) {
	name := ""
	if len(ev.Medium) > 0 {
		name = plain(ev.Medium)
	}
	var m *Medium
	for i := range s.Wire.Media {
		if s.Wire.Media[i].Name == name {
			m = &s.Wire.Media[i]
		}
	}
	if m == nil {
		if len(s.Wire.Media) == maxNames {
			return
		}
		s.Wire.Media = append(s.Wire.Media, Medium{Name: name, Tier: tierOf(ev.Medium)})
		m = &s.Wire.Media[len(s.Wire.Media)-1]
	}
	if ev.Type == decode.Stored {
		m.Stores++
	} else {
		m.Removes++
	}
}

// tierOf asks the converter for a medium's tier, so that there is one table of
// media; "": it has none.
func tierOf(medium []byte) string {
	var out convert.Output
	b := decode.Batch{Events: []decode.Event{{Type: decode.Removed, Hashes: []uint64{1}, Medium: medium}}}
	convert.New(convert.Config{}).Convert(&b, &out)
	if len(out.Events) == 0 {
		return ""
	}
	return out.Events[0].Tier.String()
}

// reasonAlone is why an event is dropped that comes alone and first; NumReasons
// when it is not.
func reasonAlone(c convert.Config, ev *decode.Event) convert.Reason {
	var out convert.Output
	r := convert.New(c)
	r.Convert(&decode.Batch{Events: []decode.Event{*ev}}, &out)
	st := r.Stats()
	for reason := range convert.NumReasons {
		if st.Drops(reason) > 0 {
			return reason
		}
	}
	return convert.NumReasons
}
