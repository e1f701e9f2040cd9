//go:build integration

package integration

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// round is what was seen in one storm and the calm after it.
type round struct {
	struck int
	healed time.Duration // until the pictures were exact
	at     [2]sample     // at rest, core and jet
	cpu    [2]float64    // share of a core; −1: not the same process as before
	lines  int           // logged
}

// look is the calm after a storm: it checks, and says one line.
func (s *soak) look() {
	s.t.Helper()
	m := round{struck: s.struck, healed: s.calm(fmt.Sprintf("round %d", len(s.rounds)+1))}
	for _, x := range s.rounds {
		m.struck -= x.struck
	}
	for i, x := range s.relays() {
		m.at[i] = s.atRest(x, x.base)
		m.cpu[i] = -1
		if x.before.pid == m.at[i].pid {
			m.cpu[i] = (m.at[i].cpu - x.before.cpu) / time.Since(x.before.when).Seconds()
		}
		x.before = m.at[i]
		m.lines += x.logged + len(x.k.log())
	}
	for _, x := range s.rounds {
		m.lines -= x.lines
	}
	s.rounds = append(s.rounds, m)
	s.say("round %d: %d troubles, exact %.1f s after the last; core %s, peak %d MiB%s; jet %s, peak %d MiB%s; history declared lost or unknown %d times; %d log lines",
		len(s.rounds), m.struck, m.healed.Seconds(), m.at[0], s.core.peak>>20, cpuText(m.cpu[0]), m.at[1], s.jet.peak>>20, cpuText(m.cpu[1]),
		s.lost(), m.lines)
}

func cpuText(share float64) string {
	if share < 0 {
		return ""
	}
	return fmt.Sprintf(", CPU %.1f %%", 100*share)
}

// lost counts the declarations of lost history, and of history that was not to be had at a start.
func (s *soak) lost() (n int) {
	for _, x := range s.relays() {
		n += x.losses + x.lossesNow()
	}
	return n
}

// end has the relays end, and sums up: a table for docs/reliability.md.
func (s *soak) end() {
	s.t.Helper()
	for _, x := range s.relays() {
		if code := x.k.stop(); code != 0 {
			s.broken("%s: exit code %d in the end", x.name, code)
		}
	}
	var healed []time.Duration
	for _, m := range s.rounds {
		healed = append(healed, m.healed)
	}
	slices.Sort(healed)
	var kinds []string
	for _, k := range slices.Sorted(maps.Keys(s.kinds)) {
		kinds = append(kinds, fmt.Sprintf("%s %d", k, s.kinds[k]))
	}
	rows := [][2]string{
		{"time, seed", fmt.Sprintf("%v, %d", time.Since(s.began).Round(time.Second), s.seed)},
		{"troubles", fmt.Sprintf("%d: %s", s.struck, strings.Join(kinds, ", "))},
		{"pictures compared", fmt.Sprintf("%d × 6 ranks, each exact", len(s.rounds)+1)},
		{"exact after the last trouble", fmt.Sprintf("%.1f s median, %.1f s at most", healed[len(healed)/2].Seconds(), healed[len(healed)-1].Seconds())},
		{"history declared lost or unknown", fmt.Sprintf("%d times", s.lost())},
		{"relays started", fmt.Sprintf("%d core, %d jet", s.core.starts, s.jet.starts)},
	}
	for i, x := range s.relays() {
		last := s.rounds[len(s.rounds)-1].at[i]
		rows = append(rows, [2]string{x.name, fmt.Sprintf("at first %s; in the end %s; peak %d MiB of %d allowed", x.base, last, x.peak>>20, x.limit>>20)})
	}
	s.say("whole:")
	fmt.Println("| | |\n|---|---|")
	for _, r := range rows {
		fmt.Printf("| %s | %s |\n", r[0], r[1])
	}
}
