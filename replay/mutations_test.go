//go:build mutations

package replay

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

// A rule that is left out must be noticed: by the simulation's oracle (sim), or
// where the model has no fault that needs the rule, by a scenario or table made by hand (hand).
//
//	go test -tags mutations -run Mutations -v ./replay
type mutation struct {
	rule  string
	by    string
	edits []edit
}

type edit struct{ file, old, new string }

var mutations = []mutation{
	{"nothing from an unproven live connection", "sim", []edit{
		{"cursor.go", "case c.proven && !c.starting && !c.waiting:", "case !c.starting && !c.waiting:"}}},
	{"what is held goes with its connection", "sim", []edit{
		{"identity.go", "c.count.Discarded += c.held.clear()", ""}}},
	{"a restart closes both connections", "hand", []edit{
		{"epochs.go", "	c.newEpoch(CauseRestart)\n	c.reopen()", "	c.newEpoch(CauseRestart)\n	c.dropRound()\n	c.proven = false\n	c.want()"}}},
	{"every request starts at the anchor", "sim", []edit{
		{"rounds.go", "c.begin(fromAnchor, c.anchor.seq)", "c.begin(fromAnchor, c.next)\n		c.round.judged = true"}}},
	{"the anchor's sum is compared", "sim", []edit{
		{"identity.go", "case sum != r.anchor.sum:", "case false:"}}},
	{"a first reply above the anchor proves nothing, also where it is next", "sim", []edit{
		{"identity.go", "case seq > r.anchor.seq:", "case seq > c.next:"}}},
	{"twice, before history is lost", "sim", []edit{
		{"identity.go", "c.above++; c.above < 2", "c.above++; c.above < 1"}}},
	{"after a stall a fresh connection", "sim", []edit{
		{"rounds.go", "	c.round = nil\n	c.closeReplay(true)", "	c.round = nil\n	c.reusable = true"}}},
	{"at Start live waits for the end of the replay", "hand", []edit{
		{"cursor.go", "case c.proven && !c.starting && !c.waiting:", "case c.proven && !c.waiting || c.starting && c.begun:"}}},
	{"live and replay of two incarnations are not merged", "sim", []edit{
		{"rounds.go", "if c.conflict(r, seq, sum) {", "if false {"}}},
	{"replies do not skip what was applied", "hand", []edit{
		{"rounds.go", "if c.ring.between(prev, seq) {", "if false {"}}},
	{"burned: two rounds", "hand", []edit{
		{"order.go", " && slices.Contains(c.neighbors, p)", " && (true || slices.Contains(c.neighbors, p))"}}},
	{"burned: only among replies that no ROUTER drops", "sim", []edit{
		{"rounds.go", "&& r.n <= c.cfg.Safe {", "{"}}},
	{"burned: a live batch is no neighbour", "sim", []edit{
		{"order.go", "	if c.missing() {\n		c.neighbors", "	if first, ok := c.held.min(); ok && first > c.next && len(r.pairs) == 0 && r.judged {\n		c.burn(first)\n	}\n	if c.missing() {\n		c.neighbors"}}},
	{"burned: no end marker is needed", "sim", []edit{
		{"rounds.go", "case r.kind < probeRing && len(r.pairs) > 0 && c.missing():", "case false:"}}},
	{"ended with nothing is no restart", "sim", []edit{
		{"rounds.go", "c.begin(probeRing, c.ring.lowest())", "c.restart()"}}},
	{"equal sums in the ring prove nothing", "sim", []edit{
		{"identity.go", "		r.same = true\n		return", "		r.same = true\n		c.prove()\n		return"}}},
	{"another sum in the ring is a restart", "sim", []edit{
		{"identity.go", "	default: // another sum, or a number that was not in use between those that were\n		c.count.Discarded++\n		c.restart()\n		return", "	default:"}}},
	{"only numbers below the ring: restart", "sim", []edit{
		{"identity.go", "	case c.onlyBelow(r):\n		c.restart()\n", ""}}},
	{"of a ring that has just begun they say nothing", "hand", []edit{
		{"identity.go", " && c.now.Sub(c.ringAt) >= c.cfg.Idle", ""}}},
	{"nothing even from 0, replayed before: restart", "hand", []edit{
		{"identity.go", "case r.n == 0 && c.answered:", "case false:"}}},
	{"nothing even from 0, unproven and twice: restart", "sim", []edit{
		{"identity.go", "case r.n == 0 && !c.proven:", "case false:"}}},
	{"a stray anchor is a restart", "sim", []edit{
		{"identity.go", "	case r.same && !r.late && c.stray():\n		c.restart()\n", ""}}},
	{"live: another sum in the ring is a restart", "hand", []edit{
		{"order.go", "		return old == sum\n", "		return old == sum || true\n"}}},
	{"live: outside the ring the wall clock decides", "hand", []edit{
		{"order.go", "return !ok || !c.hasTS || ts <= c.ts", "return !ok || !c.hasTS || ts <= c.ts || true"}}},
	{"replayed: outside the ring it does not", "sim", []edit{
		{"order.go", "	if replayed {\n		return true\n	}\n	ts, ok", "	ts, ok"}}},
	{"silence is polled", "sim", []edit{
		{"rounds.go", "	c.count.Polls++\n	c.pollEvery = min(2*c.pollEvery, max(maxPoll, c.cfg.Heartbeat))\n	c.want()", "	c.pollAt = c.now.Add(c.pollEvery)"}}},
	{"polls become rarer", "sim", []edit{
		{"rounds.go", "min(2*c.pollEvery, max(maxPoll, c.cfg.Heartbeat))", "c.cfg.Heartbeat"}}},
	{"retries pause", "sim", []edit{
		{"rounds.go", "	c.resumeAt = c.now.Add(d)", "	c.resumeAt = c.now.Add(1)"}}},
	{"attempts end", "sim", []edit{
		{"rounds.go", "} else if c.attempts++; c.attempts >= c.cfg.Attempts {", "} else if c.attempts++; false {"}}},
	{"exhausted, nothing missing: nothing changes", "sim", []edit{
		{"epochs.go", "case c.missing() || !c.proven && c.held.len() > 0:", "case true:"}}},
	{"exhausted, batches held on an unproven connection: lost", "hand", []edit{
		{"epochs.go", "case c.missing() || !c.proven && c.held.len() > 0:", "case c.missing():"}}},
	{"lost: as a restart, both connections anew", "sim", []edit{
		{"epochs.go", "		c.newEpoch(CauseLost)\n		c.reopen()", "		c.dropRound()\n		c.newEpoch(CauseLost)\n		c.proven = true\n		c.base, c.next = to, to\n		c.drain()\n		c.want()"}}},
	{"going on behind a loss: only with what came live", "hand", []edit{
		{"epochs.go", "	c.count.Discarded += c.held.dropReplayed()\n", ""}}},
	{"keep: only on a proven connection", "sim", []edit{
		{"epochs.go", "if c.cfg.Lost != LostKeep || !c.proven {", "if c.cfg.Lost != LostKeep {"},
		{"epochs.go", "	c.drain() // at least first", "	c.prove() // at least first"}}},
	{"keep: only with a PONG from after the second connection", "hand", []edit{
		{"epochs.go", "	if c.pinged.After(c.connected) {", "	if true {"}}},
	{"keep: the ring begins anew", "hand", []edit{
		{"epochs.go", "			c.ring.clear()\n		}\n		c.drain()", "		}\n		c.drain()"}}},
	{"refusals for DEAD_AFTER count as exhausted", "hand", []edit{
		{"rounds.go", "case now.Sub(c.refused) >= c.cfg.DeadAfter:", "case false:"}}},
	{"the end marker's number is no batch", "sim", []edit{
		{"cursor.go", "	case seq == noSeq:\n		c.count.Malformed++\n", ""}}},
	{"without credit the highest number is remembered", "sim", []edit{
		{"cursor.go", "	c.count.Discarded++\n	c.ahead(seq)\n", "	c.count.Discarded++\n"},
		{"cursor.go", "if c.pending || c.missing() || !c.proven {", "if c.missing() {"},
		{"rounds.go", "	c.count.Polls++\n", "	c.count.Polls++\n	if c.count.Discarded > 0 {\n		c.pollAt = c.now.Add(time.Hour)\n		return\n	}\n"}}},
	{"what was dropped for room is replayed", "hand", []edit{
		{"order.go", "		c.held.take(top)\n		c.ahead(top)\n", "		c.held.take(top)\n"}}},
	{"a hint ends", "hand", []edit{
		{"order.go", "		c.hint = hint{} // only a hint", "		// only a hint"}}},
	{"a live batch that the ring denies counts where replay is silent", "sim", []edit{
		{"epochs.go", "case c.denied:", "case false:"}}},
	{"held bytes are given back", "sim", []edit{
		{"hold.go", "	h.budget.Give(cost)\n", ""}}},
	{"a dead engine's blocks are cleared", "hand", []edit{
		{"identity.go", "	c.waiting = true\n	c.host.Away()\n", "	c.downAt = c.now.Add(time.Hour)\n"}}},
	{"a connection that proves nothing does not make DEAD_AFTER begin anew", "hand", []edit{
		{"cursor.go", "		c.wasDown += now.Sub(c.downAt)\n", "		c.wasDown = 0\n"}}},
	{"one that proves the engine does", "hand", []edit{
		{"identity.go", "	if c.proven || c.now.Sub(c.upAt) >= c.cfg.DeadAfter {\n		c.wasDown = 0\n	}\n", ""}}},
	{"waiting ends with proof only", "hand", []edit{
		{"cursor.go", "	c.restPoll()\n	if c.cfg.NoReplay {\n		c.proven", "	c.restPoll()\n	c.back()\n	if c.cfg.NoReplay {\n		c.proven"}}},
	{"a trickle gives up its slot", "hand", []edit{
		{"rounds.go", "trickle = 10 * time.Second", "trickle = 10 * time.Hour"}}},
	{"without replay a gap is lost at once", "sim", []edit{
		{"alone.go", "		if !c.aloneLost(seq) {", "		if c.next = seq; false {"}}},
	{"without replay a restart that is seen is one", "sim", []edit{
		{"alone.go", "if c.repeats(seq, sum, payload, false) {", "if true {"}}},
}

func TestMutations(t *testing.T) {
	complaint := regexp.MustCompile(`: ([A-Z_]+) in \d+ scenarios`)
	for _, m := range mutations {
		t.Run(m.rule, func(t *testing.T) {
			overlay := overlayOf(t, m.edits)
			run := func(args ...string) (string, bool) {
				out, err := exec.Command("go", append([]string{"test", "-vet=off", "-overlay", overlay, "-timeout", "15m", "."}, args...)...).CombinedOutput()
				if strings.Contains(string(out), "[build failed]") {
					t.Fatalf("%s", out)
				}
				return string(out), err != nil
			}
			if m.by == "hand" {
				out, noticed := run("-run", "Test[^S]|TestS[it]")
				if !noticed {
					t.Fatal("not noticed")
				}
				t.Logf("noticed by hand: %s", firstFailure(out))
				return
			}
			begin := time.Now()
			out, noticed := run("-run", "TestSim$", "-first", "-seeds", "40000")
			if !noticed {
				t.Fatal("not noticed")
			}
			var by []string
			if strings.Contains(out, "panic: ") {
				by = append(by, strings.TrimSpace(out[strings.Index(out, "panic: "):][:60]))
			}
			for _, f := range complaint.FindAllStringSubmatch(out, -1) {
				by = append(by, f[1])
			}
			slices.Sort(by)
			t.Logf("noticed by the oracle in %.0fs: %s", time.Since(begin).Seconds(), strings.Join(slices.Compact(by), " "))
		})
	}
}

func firstFailure(out string) string {
	for line := range strings.Lines(out) {
		if strings.Contains(line, "--- FAIL") {
			return strings.TrimSpace(line)
		}
	}
	return out
}

// overlayOf writes the package's files as edited, and the overlay that names them.
func overlayOf(t *testing.T, edits []edit) string {
	dir := t.TempDir()
	replaced := map[string]string{}
	for _, e := range edits {
		path, err := filepath.Abs(e.file)
		if err != nil {
			t.Fatal(err)
		}
		from := path
		if r, ok := replaced[path]; ok {
			from = r
		}
		src, err := os.ReadFile(from)
		if err != nil {
			t.Fatal(err)
		}
		if n := strings.Count(string(src), e.old); n != 1 {
			t.Fatalf("%s has %d places like %q", e.file, n, e.old)
		}
		to := filepath.Join(dir, filepath.Base(path))
		if err := os.WriteFile(to, []byte(strings.Replace(string(src), e.old, e.new, 1)), 0o600); err != nil {
			t.Fatal(err)
		}
		replaced[path] = to
	}
	b, err := json.Marshal(map[string]any{"Replace": replaced})
	if err != nil {
		t.Fatal(err)
	}
	overlay := filepath.Join(dir, "overlay.json")
	if err := os.WriteFile(overlay, b, 0o600); err != nil {
		t.Fatal(err)
	}
	return overlay
}
