package config

import (
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"
)

// Problem is one thing wrong with the settings.
type Problem struct {
	Name  string // the variable or flag as the user wrote it: KVRELAY_RANKS, --ranks
	Value string // as written, fit to be shown: secrets masked, cut when long
	Has   bool   // there is a value to show
	Want  string // what would be right
}

// maxShown is how much of a wrong value is quoted; the rest is cut off.
const maxShown = 80

// Error is `KVRELAY_RANKS="0": want a whole number from 1 to 65536`.
func (p Problem) Error() string {
	if !p.Has {
		return p.Name + ": " + p.Want
	}
	value := p.Value
	if len(value) > maxShown {
		cut := maxShown
		for cut > 0 && !utf8.RuneStart(value[cut]) {
			cut--
		}
		value = value[:cut] + "…"
	}
	return p.Name + "=" + strconv.Quote(value) + ": " + p.Want
}

// Problems is everything that is wrong, at once. It is never empty as an error.
type Problems []Problem

// Error is one line when there is one problem, else a line for each.
func (p Problems) Error() string {
	if len(p) == 1 {
		return p[0].Error()
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%d problems in the settings:", len(p))
	for _, one := range p {
		b.WriteString("\n  ")
		b.WriteString(one.Error())
	}
	return b.String()
}

// Unwrap gives the problems one by one.
func (p Problems) Unwrap() []error {
	errs := make([]error, len(p))
	for i, one := range p {
		errs[i] = one
	}
	return errs
}

// Nearest is the candidate that word was probably meant to be: the one that
// takes the fewest insertions, deletions, replacements and swaps of
// neighbours, when these are at most a third of the longer word; else "".
func Nearest(word string, candidates []string) string {
	const longest = 64 // a longer word is no typing error, and the table below is quadratic
	if len(word) > longest {
		return ""
	}
	best, bestAt := "", 0
	for _, c := range candidates {
		d := distance(word, c)
		if d > max(len(word), len(c))/3 {
			continue
		}
		if best == "" || d < bestAt {
			best, bestAt = c, d
		}
	}
	return best
}

// distance is the restricted Damerau–Levenshtein distance.
func distance(a, b string) int {
	rows := make([][]int, len(a)+1)
	for i := range rows {
		rows[i] = make([]int, len(b)+1)
		rows[i][0] = i
	}
	for j := range rows[0] {
		rows[0][j] = j
	}
	for i := 1; i <= len(a); i++ {
		for j := 1; j <= len(b); j++ {
			cost := 1
			if a[i-1] == b[j-1] {
				cost = 0
			}
			d := min(rows[i-1][j]+1, rows[i][j-1]+1, rows[i-1][j-1]+cost)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				d = min(d, rows[i-2][j-2]+1)
			}
			rows[i][j] = d
		}
	}
	return rows[len(a)][len(b)]
}
