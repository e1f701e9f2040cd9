//go:build integration

package admin

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/kvrelay/kvrelay/discovery"
	"github.com/kvrelay/kvrelay/relay"
)

// rowsShown is how many rank rows the page has.
const rowsShown = `document.querySelectorAll("#ranks tr.rank").length`

// The page in a real browser, through the states of a relay's life.
func TestPage(t *testing.T) {
	b := startBrowser(t)
	t.Run("states", func(t *testing.T) { testPageStates(t, b) })
	t.Run("keyboard", func(t *testing.T) { testPageKeyboard(t, b) })
	t.Run("hostile text", func(t *testing.T) { testPageHostileText(t, b) })
	t.Run("phone and many ranks", func(t *testing.T) { testPagePhone(t, b) })
	t.Run("lost relay", func(t *testing.T) { testPageLostRelay(t, b) })
}

func testPageStates(t *testing.T, b *browser) {
	b.t = t
	w := newWorld(4)
	_, url := serve(t, w, nil)
	b.open(url, 1280, 900)
	says := func(text string) string {
		return `document.body && document.body.innerText.includes(` + quote(text) + `)`
	}
	b.await("four live ranks", says("all 4 ranks live")+`&& `+rowsShown+` === 4`)
	b.await("a quiet life", says("No gap, restart or lost connection yet.")+"&&"+says("Nothing was dropped."))
	b.await("a sparkline", `document.querySelector("#ranks .spark path:not(.area)").getAttribute("d").length > 5`)

	w.change(func(st *relay.Status) {
		s := &st.Sources[2]
		s.Cursor.Gaps, s.Cursor.Missing = 1, true
		s.State, s.Reason, s.Ranks[0].State = relay.StateReplaying, "batches are missing and being replayed", relay.StateReplaying
		s.Ranks[0].Convert.Events.Dropped[3] = 5
	})
	b.await("a gap", says("3 of 4 ranks live")+"&&"+says("batches are missing and being replayed")+"&&"+says("rank 2: gap behind seq 41")+`&& document.querySelector(".mark.m-gap") !== null`)
	b.await("the drop reason and what it means", says("ignored_event")+"&&"+says("an event that says nothing about blocks"))

	w.change(func(st *relay.Status) {
		st.Sources[0].LiveSince, st.Sources[0].LastError = time.Time{}, "connection refused"
		st.Sources[0].State, st.Sources[0].Reason, st.Sources[0].Ranks[0].State = relay.StateWaiting, "not connected to the engine", relay.StateWaiting
	})
	b.await("the engine down", says("not connected to the engine: connection refused")+"&&"+says("rank 0: connection to the engine ended"))

	w.change(func(st *relay.Status) { st.Sink.Connected, st.Sink.LastError = false, "no route" })
	b.await("NATS down", says("NATS not connected")+"&&"+says("NATS is not connected: no route")+"&&"+says("the connection to NATS is lost"))

	w.change(func(st *relay.Status) { st.Sources, st.Sink.Connected = nil, true })
	b.await("no rank", says("no rank yet")+"&&"+says("no rank is known yet")+`&& `+rowsShown+` === 0`)

	w.change(func(st *relay.Status) { st.Sources = newWorld(1).st.Sources })
	b.await("one rank", `document.getElementById("overall").innerText === "live" && `+rowsShown+` === 1 && document.title === "live – kvrelay"`)
	b.clean(t)
}

func testPageKeyboard(t *testing.T, b *browser) {
	b.t = t
	_, url := serve(t, newWorld(2), nil)
	b.open(url, 1280, 900)
	b.await("ranks", rowsShown+` === 2`)
	b.key("Tab", 9, "")
	b.await("focus on the first rank", `document.activeElement.matches("#ranks button") && document.activeElement.getAttribute("aria-expanded") === "false"`)
	b.key("Enter", 13, "\r")
	b.await("its details", `document.activeElement.getAttribute("aria-expanded") === "true" && document.querySelector("tr.more:not(.hide)").innerText.includes("tcp://127.0.0.1:5557")`)
	var n int
	b.eval(`new Promise(done => { const n = document.querySelectorAll("#ranks button"); setTimeout(() => done([...n].filter(b => b.isConnected && b === document.activeElement).length), 1500); })`, &n)
	if n != 1 {
		t.Error("an update has taken the focus away")
	}
	b.key("Enter", 13, "\r")
	b.await("no details", `document.querySelector("tr.more:not(.hide)") === null`)
	b.clean(t)
}

// What an engine says is shown as text, whatever it is.
func testPageHostileText(t *testing.T, b *browser) {
	b.t = t
	const evil = `<img src=x onerror="window.hacked=1"><script>window.hacked=1</script>`
	w := newWorld(1)
	w.st.Sources[0].Source.Endpoint = "ipc://" + evil
	w.st.Sources[0].State, w.st.Sources[0].Reason, w.st.Sources[0].LastError = relay.StateWaiting, evil, evil
	w.st.Sources[0].Ready = false
	w.disco.Warnings, w.disco.Refused = []string{evil}, []discovery.Refusal{{Source: evil, Reason: evil}}
	w.disco.Version = evil
	_, url := serve(t, w, nil)
	b.open(url, 1280, 900)
	b.await("the rank", rowsShown+` === 1`)
	b.await("the text", `(document.querySelector("#ranks button").click(), document.body.innerText.includes("onerror"))`)
	var bad bool
	b.eval(`window.hacked === 1 || document.querySelector("img") !== null || document.querySelectorAll("script").length !== 1`, &bad)
	if bad {
		t.Error("text became markup")
	}
	b.clean(t)
}

func testPagePhone(t *testing.T, b *browser) {
	b.t = t
	_, url := serve(t, newWorld(16), nil)
	for _, dark := range []bool{false, true} {
		b.dark(dark)
		for _, width := range []int{360, 1280} {
			b.open(url, width, 800)
			b.await("16 ranks", rowsShown+` === 16 && document.body.innerText.includes("all 16 ranks live")`)
			var wide int
			b.eval(`document.documentElement.scrollWidth`, &wide)
			if wide > width {
				t.Errorf("dark %v: %d pixels wide on %d", dark, wide, width)
			}
		}
		var pale []string
		b.eval(contrast, &pale)
		if len(pale) > 0 {
			t.Errorf("dark %v: too little contrast: %q", dark, pale)
		}
	}
	b.clean(t)
}

// contrast lists texts whose contrast is below 4.5 to 1 (WCAG AA).
const contrast = `(() => {
  const parse = c => { const m = c.match(/[\d.]+/g).map(Number); return m.length > 3 && m[3] === 0 ? null : m; };
  const lum = c => { const [r, g, b] = c.slice(0, 3).map(v => (v /= 255) <= .03928 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4); return .2126 * r + .7152 * g + .0722 * b; };
  const bg = e => { for (; e; e = e.parentElement) { const c = parse(getComputedStyle(e).backgroundColor); if (c) return c; } return [255, 255, 255]; };
  const bad = new Set();
  for (const e of document.querySelectorAll("body *")) {
    if (![...e.childNodes].some(n => n.nodeType === 3 && n.textContent.trim()) || !e.checkVisibility() || e.tagName === "SCRIPT") continue;
    const a = lum(parse(getComputedStyle(e).color)), b = lum(bg(e));
    if ((Math.max(a, b) + .05) / (Math.min(a, b) + .05) < 4.5) bad.add(e.textContent.trim().slice(0, 40));
  }
  return [...bad];
})()`

// A relay that ends is said to be gone; one that comes back is shown again.
func testPageLostRelay(t *testing.T, b *browser) {
	b.t = t
	w := newWorld(2)
	s := New(Options{Addr: "127.0.0.1:0", Status: w.status, Discovery: w.discovery, Sink: "nats"})
	if err := s.Listen(t.Context()); err != nil {
		t.Fatal(err)
	}
	addr := s.Addr()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	b.open("http://"+addr, 1280, 900)
	b.await("ranks", rowsShown+` === 2`)
	cancel()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	b.await("the loss", `!document.getElementById("lost").classList.contains("hide") && document.getElementById("lost").innerText.includes("does not answer") && document.getElementById("overall").innerText === "no answer" && document.title.startsWith("no answer") && document.body.classList.contains("stale")`)
	// The next life of the relay, on the same port.
	var err error
	for deadline := time.Now().Add(patience); ; {
		w3 := newWorld(3)
		next := New(Options{Addr: addr, Status: w3.status, Discovery: w3.discovery, Sink: "nats"})
		if err = next.Listen(t.Context()); err == nil {
			ctx, cancel := context.WithCancel(context.Background())
			ended := make(chan error, 1)
			go func() { ended <- next.Run(ctx) }()
			defer func() {
				cancel()
				if err := <-ended; err != nil {
					t.Error(err)
				}
			}()
			break
		}
		if time.Now().After(deadline) {
			t.Fatal(err)
		}
	}
	b.await("the next life", rowsShown+` === 3 && document.getElementById("lost").classList.contains("hide") && !document.body.classList.contains("stale")`)
}

func quote(s string) string { return `"` + strings.ReplaceAll(s, `"`, `\"`) + `"` }

// clean fails when a script failed or did what the policy forbids.
func (b *browser) clean(t *testing.T) {
	t.Helper()
	for _, c := range b.complaints() {
		if strings.Contains(c, `"source":"network"`) {
			continue // the page before went on asking a relay that had ended
		}
		t.Errorf("the browser complains: %s", c)
	}
	b.mu.Lock()
	b.console = nil
	b.mu.Unlock()
}
