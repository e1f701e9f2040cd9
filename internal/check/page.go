package check

import (
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"
)

// Style is how Text is written.
type Style struct {
	Width int  // columns; 0: 80
	Color bool // with terminal colours
}

const (
	bold   = "1"
	dim    = "2"
	red    = "31"
	green  = "32"
	yellow = "33"
)

const margin = 14 // columns of the names in front

// page writes lines.
type page struct {
	Style
	b strings.Builder
}

func (p *page) paint(code, text string) string {
	if !p.Color {
		return text
	}
	return "\x1b[" + code + "m" + text + "\x1b[0m"
}

// row writes a name and a text beside it, in lines that fit.
func (p *page) row(name, text string) {
	p.item("  "+p.paint(bold, name)+strings.Repeat(" ", max(1, margin-2-utf8.RuneCountInString(name))), margin, text)
}

// item writes text behind head, which is indent columns wide.
func (p *page) item(head string, indent int, text string) {
	line, used := head, indent
	for i, word := range strings.Fields(text) {
		n := utf8.RuneCountInString(word)
		if i > 0 && used+1+n > p.Width {
			p.b.WriteString(strings.TrimRight(line, " ") + "\n")
			line, used = strings.Repeat(" ", indent), indent
		} else if i > 0 {
			line += " "
			used++
		}
		line += word
		used += n
	}
	p.b.WriteString(strings.TrimRight(line, " ") + "\n")
}

// forms says in which of two forms things came.
func forms(what string, arrays, maps uint64) string {
	switch {
	case arrays > 0 && maps > 0:
		return fmt.Sprintf("%s: %d arrays, %d maps", what, arrays, maps)
	case arrays > 0:
		return what + ": arrays"
	case maps > 0:
		return what + ": maps"
	}
	return ""
}

// shares lists values by how often they came.
func shares(m map[string]uint64, noun string) string {
	list := names(m)
	if len(list) == 1 {
		return list[0]
	}
	for i, name := range list {
		list[i] = fmt.Sprintf("%s in %d %s", name, m[name], noun)
	}
	return strings.Join(list, ", ")
}

func sum(m map[string]uint64) (n uint64) {
	for _, v := range m {
		n += v
	}
	return n
}

func percent(part, whole uint64) string {
	if whole == 0 {
		return "–"
	}
	return strconv.FormatFloat(100*float64(part)/float64(whole), 'f', 0, 64) + " %"
}

// short is a rate in few digits.
func short(v float64) string {
	if v >= 10 {
		return strconv.FormatFloat(v, 'f', 0, 64)
	}
	return strconv.FormatFloat(v, 'f', 1, 64)
}

func bytesText(n float64) string {
	switch {
	case n >= 1<<20:
		return fmt.Sprintf("%.1f MiB", n/(1<<20))
	case n >= 1<<10:
		return fmt.Sprintf("%.1f KiB", n/(1<<10))
	}
	return fmt.Sprintf("%.0f bytes", n)
}
