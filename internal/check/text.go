package check

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// Text writes the report for people.
func (r *Report) Text(w io.Writer, st Style) error {
	if st.Width <= 0 {
		st.Width = 80
	}
	st.Width = max(40, st.Width)
	p := &page{Style: st}
	engine := strings.TrimSpace(r.Engine + " " + r.Version)
	if engine != "" {
		engine = " (" + engine + ")"
	}
	if r.File {
		fmt.Fprintf(&p.b, "%s%s, a recording\n", p.paint(bold, r.Target), engine)
	} else {
		fmt.Fprintf(&p.b, "%s%s, looked at for %.0f s\n", p.paint(bold, orText(r.Target, "engine")), engine, r.Seconds)
	}
	for _, s := range r.Streams {
		fmt.Fprintf(&p.b, "\n%s\n", p.paint(bold, s.Name))
		p.stream(r, s)
	}
	p.verdict(r)
	_, err := io.WriteString(w, p.b.String())
	return err
}

func (p *page) stream(r *Report, s *Stream) {
	p.live(r, s)
	p.replay(r, s)
	if s.Numbers.Applied == 0 {
		return
	}
	w := &s.Wire
	var enc []string
	enc = append(enc, forms("batches", w.BatchArrays, w.BatchMaps), forms("events", w.EventArrays, w.EventMaps))
	switch {
	case w.HashBytes > 0 && w.HashInts > 0:
		enc = append(enc, "hashes: integers and bytes")
	case w.HashBytes > 0:
		enc = append(enc, "hashes: bytes")
	case w.HashInts > 0:
		enc = append(enc, "hashes: integers")
	}
	if w.RankNamed == 0 && w.RankAbsent > 0 {
		enc = append(enc, "batches name no rank")
	}
	p.row("encoding", strings.Join(slices.DeleteFunc(enc, func(t string) bool { return t == "" }), "; "))
	events := fmt.Sprintf("stored %d, removed %d, cleared %d", w.Stored, w.Removed, w.Cleared)
	for _, name := range names(w.Unknown) {
		events += fmt.Sprintf(", %s %d", name, w.Unknown[name])
	}
	if w.Ignored > 0 {
		events += fmt.Sprintf(", Ignored %d", w.Ignored)
	}
	if n := sum(w.Malformed); n > 0 {
		events += fmt.Sprintf(", malformed %d", n)
	}
	p.row("events", events)
	if len(w.BlockSizes) > 0 {
		p.row("block size", shares(w.BlockSizes, "stores"))
	}
	p.groups(w)
	p.media(w)
	p.extras(w)
	for _, rank := range s.Ranks {
		p.rank(s, rank)
	}
}

func (p *page) live(r *Report, s *Stream) {
	l, n := &s.Live, &s.Numbers
	if !r.File {
		p.row("live", l.Endpoint)
		if !l.Connected {
			p.row("", p.paint(red, "not connected"))
			return
		}
	}
	rate := ""
	if !r.File && l.Seconds > 0 {
		rate = fmt.Sprintf(" in %.1f s (%s a second)", l.Seconds, short(float64(l.Messages)/l.Seconds))
	}
	text := plural(l.Messages, "message") + rate
	if len(l.Frames) > 0 {
		text += " of " + strings.Join(names(l.Frames), " and ") + " frames"
	}
	if l.Messages > l.Odd+l.Filtered {
		text += fmt.Sprintf(", %s each", bytesText(float64(l.Bytes)/float64(l.Messages-l.Odd-l.Filtered)))
	}
	switch {
	case len(l.Topics) == 1 && l.Topics[0] == "":
		text += ", no topic"
	case len(l.Topics) > 0:
		text += ", topic " + strings.Join(l.Topics, ", ")
	}
	name := "live"
	if !r.File {
		name = ""
	}
	p.row(name, text)
	if l.lagN > 0 {
		p.row("lag", fmt.Sprintf("%.1f ms mean, %.1f ms at most, from the engine's stamp to here", l.LagMS, l.LagMaxMS))
	}
	if n.First != nil {
		text := fmt.Sprintf("%d to %d, %s in order", *n.First, *n.Last, plural(n.Applied, "batch"))
		if *n.First == *n.Last {
			text = fmt.Sprintf("%d, 1 batch", *n.First)
		}
		if n.Restarts > 0 {
			text += ", " + plural(n.Restarts, "restart")
		}
		if n.Gaps > 0 {
			text += fmt.Sprintf(", %s", plural(n.Gaps, "gap"))
			if n.Healed > 0 {
				text += fmt.Sprintf(" healed with %s of replay", plural(n.Healed, "batch"))
			}
		} else {
			text += ", no gap"
		}
		if n.Burned > 0 {
			text += fmt.Sprintf(", %d never used", n.Burned)
		}
		if n.Missing > 0 {
			text += ", " + p.paint(yellow, fmt.Sprintf("%d missing", n.Missing))
		}
		p.row("numbers", text)
	}
}

func (p *page) replay(r *Report, s *Stream) {
	x := &s.Replay
	switch {
	case r.File && x.Requests == 0:
		return
	case x.Off:
		p.row("replay", p.paint(yellow, "switched off"))
		return
	case !x.Configured:
		p.row("replay", p.paint(red, "none known"))
		return
	case !r.File:
		p.row("replay", x.Endpoint)
		if !x.Connected {
			p.row("", p.paint(red, "not connected"))
			return
		}
	}
	text := fmt.Sprintf("%d of %s answered", x.Answered, plural(x.Requests, "request"))
	if x.Batches > 0 {
		text += fmt.Sprintf(", %s", plural(x.Batches, "batch"))
	}
	if x.First != nil {
		text += fmt.Sprintf(", back to number %d", *x.First)
	}
	if x.TookMS > 0 {
		text += fmt.Sprintf("; the first after %.0f ms, whole after %.0f ms", x.FirstMS, x.TookMS)
	}
	name := ""
	if r.File {
		name = "replay"
	}
	p.row(name, text)
	if len(x.Frames) > 0 {
		marks := "no end marker"
		if x.EndMarkers > 0 {
			marks = fmt.Sprintf("%s of %s frames", plural(x.EndMarkers, "end marker"), strings.Join(names(x.EndFrames), " and "))
		}
		p.row("", fmt.Sprintf("replies of %s frames (%s); %s", strings.Join(names(x.Frames), " and "), framing(x.Frames), marks))
	}
}

// framing says whose replies have that many frames.
func framing(frames map[string]uint64) string {
	switch list := names(frames); {
	case len(list) != 1:
		return "mixed"
	case list[0] == "4":
		return "as vLLM from 0.26, SGLang from 0.5.22, TensorRT-LLM"
	case list[0] == "3":
		return "as vLLM before 0.26, SGLang before 0.5.22, Dynamo's mocker"
	case list[0] == "2":
		return "as ATOM"
	}
	return "of no known engine"
}

func (p *page) groups(w *Wire) {
	if len(w.Groups) == 0 || len(w.Groups) == 1 && w.Groups[0].Index == nil && w.Groups[0].Kind == "" {
		return
	}
	for i, g := range w.Groups {
		text := "not named"
		if g.Index != nil {
			text = strconv.FormatUint(uint64(*g.Index), 10)
		}
		if g.Kind != "" {
			text += " " + g.Kind
		}
		if !g.Routable {
			text += " (not routable)"
		}
		text += fmt.Sprintf(": %s, %s", plural(g.Stores, "store"), plural(g.Removes, "remove"))
		if len(w.BlockSizes) > 1 && len(g.BlockSizes) > 0 {
			text += ", block size " + strings.Join(names(g.BlockSizes), ", ")
		}
		p.row(first(i, "groups"), text)
	}
}

func (p *page) media(w *Wire) {
	for i, m := range w.Media {
		tier := m.Tier
		if tier == "" {
			tier = p.paint(red, "no known tier")
		}
		p.row(first(i, "media"), fmt.Sprintf("%s → %s: %s, %s", orText(m.Name, "not named"), tier, plural(m.Stores, "store"), plural(m.Removes, "remove")))
	}
}

func first(i int, name string) string {
	if i > 0 {
		return ""
	}
	return name
}

func (p *page) extras(w *Wire) {
	var list []string
	add := func(n uint64, format string) {
		if n > 0 {
			list = append(list, fmt.Sprintf(format, n))
		}
	}
	if w.Adapters > 0 {
		add(w.LoRA, fmt.Sprintf("%%d of %s", plural(w.Adapters, "LoRA adapter")))
	} else {
		add(w.LoRA, "%d of unnamed LoRA adapters")
	}
	add(w.Salted, "%d with cache_salt")
	add(w.ExtraText, "%d with other text in extra_keys")
	add(w.Multimodal, "%d multimodal")
	add(w.Pairs, "%d with EAGLE token pairs")
	add(w.HashOnly, "%d without tokens")
	add(w.Sessions, "%d with a session")
	add(w.Reused, "%d marked as reused")
	if len(list) > 0 {
		p.row("stores", strings.Join(list, ", "))
	}
}

func (p *page) rank(s *Stream, r *Rank) {
	if len(s.Ranks) > 1 || r.Rank != s.Own {
		p.row("dp rank", strconv.FormatUint(uint64(r.Rank), 10))
	}
	text := fmt.Sprintf("%d of %s (%s) → %s", r.Published, plural(r.Events, "event"), percent(r.Published, r.Events), plural(r.RouterEvents, "router event"))
	if r.Suppressed > 0 {
		text += fmt.Sprintf("; %d only took one of several copies", r.Suppressed)
	}
	p.row("published", text)
	p.row("held now", fmt.Sprintf("%s, as a router would see it", plural(uint64(r.Present), "block")))
	if len(r.Drops) == 0 {
		p.row("dropped", p.paint(green, "nothing"))
		return
	}
	reasons := slices.Sorted(maps.Keys(r.Drops))
	slices.SortStableFunc(reasons, func(a, b string) int { return int(r.Drops[b].Events) - int(r.Drops[a].Events) })
	for i, name := range reasons {
		d := r.Drops[name]
		text := fmt.Sprintf("%s: %d", name, d.Events)
		if d.Blocks > 0 {
			text += fmt.Sprintf(" (%s)", plural(d.Blocks, "block"))
		}
		p.row(first(i, "dropped"), text)
		if d.Example != "" {
			p.item(strings.Repeat(" ", margin)+p.paint(dim, "e.g. "), margin+5, d.Example)
		}
	}
}

func (p *page) verdict(r *Report) {
	counts := map[Level]uint64{}
	for _, f := range r.Findings {
		counts[f.Level]++
	}
	p.b.WriteString("\n")
	switch {
	case !r.Healthy:
		text := plural(counts[Problem], "problem")
		if n := counts[Warning]; n > 0 {
			text += ", " + plural(n, "warning")
		}
		p.b.WriteString(p.paint(red, "✗ "+text) + "\n")
	case counts[Warning] > 0:
		p.b.WriteString(p.paint(green, "✓ healthy") + ", with " + plural(counts[Warning], "warning") + "\n")
	default:
		p.b.WriteString(p.paint(green, "✓ healthy") + "\n")
	}
	marks := map[Level][2]string{Problem: {"✗", red}, Warning: {"!", yellow}, Note: {"·", dim}}
	for _, f := range r.Findings {
		what := f.What
		if f.Where != "" && len(r.Streams) > 1 {
			what = f.Where + ": " + what
		}
		mark := marks[f.Level]
		p.b.WriteString("\n")
		p.item("  "+p.paint(mark[1], mark[0])+" ", 4, what)
		if f.Do != "" {
			p.item("    → ", 6, f.Do)
		}
	}
}
