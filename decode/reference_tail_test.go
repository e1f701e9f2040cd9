package decode

import "unicode/utf8"

// refTailMM takes a slot of the tail for block_mm_infos if it is that, and the
// first that is.
func (ev *Event) refTailMM(v node, first bool) {
	if ev.HasMM {
		return
	}
	maps := false
	for _, e := range v.list {
		if !e.isNil() && e.kind != "map" && e.kind != "array" {
			return
		}
		maps = maps || e.kind == "map"
	}
	if !first && !maps {
		return
	}
	defer func() {
		if p := recover(); p != nil {
			if maps {
				panic(p)
			}
			ev.MM, ev.HasMM = nil, false
		}
	}()
	ev.MM = nil
	ev.refMMInfos(v)
}

func (ev *Event) refTail(tail []node) {
	for i, v := range tail {
		must(i > 5 || !v.isText() || utf8.Valid(v.text))
	}
	tail = tail[:min(len(tail), 6)]
	if ev.Type == Stored && tail[0].kind == "array" {
		ev.refTailMM(tail[0], true)
		tail = tail[1:]
	}
	tail = tail[:min(len(tail), 5)]
	fixed := len(tail) >= 4
	shape := ""
	for _, v := range tail {
		switch {
		case v.isNil():
			shape += "-"
		case v.isText():
			shape += "t"
		case v.kind == "int" && !v.neg:
			shape += "u"
		default:
			shape += "?"
		}
	}
	for i, s := range shape {
		fixed = fixed && (s == '-' || byte(s) == "ututt"[i])
	}
	group := func(v node) {
		if ev.HasGroup = v.num < 1<<32; ev.HasGroup {
			ev.Group = uint32(v.num)
		}
	}
	if fixed {
		if shape[0] == 'u' {
			group(tail[0])
		}
		ev.Kind, ev.Locality = tail[1].text, tail[3].text
		if len(tail) == 5 {
			ev.Ownership = tail[4].text
		}
		ev.HasKind = ev.Kind != nil
		return
	}
	var ints []node
	var other []byte
	for i, v := range tail {
		switch {
		case shape[i] == 'u':
			ints = append(ints, v)
		case v.kind == "array" && ev.Type == Stored:
			ev.refTailMM(v, false)
		case shape[i] == 't':
			dst := &other
			switch s := string(v.text); s {
			case "LOCAL", "REMOTE":
				if ev.Locality == nil {
					dst = &ev.Locality
				}
			case "framework":
				dst = &ev.Ownership
			case "full_attention", "mla_attention", "sink_full_attention", "sliding_window", "sliding_window_mla",
				"mamba", "chunked_local_attention", "encoder_only_attention", "cross_attention":
				if ev.Kind == nil {
					dst = &ev.Kind
				}
			}
			*dst = v.text
		}
	}
	if len(ints) > 0 && shape != "-tu" {
		group(ints[0])
	}
	if other != nil {
		if ev.Kind == nil {
			ev.Kind = other
		} else {
			ev.Ownership = other
		}
	}
	ev.HasKind = ev.Kind != nil
}
