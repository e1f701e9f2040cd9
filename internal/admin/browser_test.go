//go:build integration

package admin

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync"
	"testing"
	"time"
)

// browser is a headless Chromium with one tab, driven through its debugging
// pipe: JSON messages that end with a zero byte, on descriptors 3 and 4.
type browser struct {
	t       *testing.T
	cmd     *exec.Cmd
	in      io.WriteCloser
	session string

	mu      sync.Mutex
	next    int
	waiting map[int]chan reply
	console []string // what pages complained about
	gone    chan struct{}
}

type reply struct {
	Result json.RawMessage
	Error  *struct{ Message string }
}

// patience is for a browser that starts on a busy machine.
const patience = 60 * time.Second

func startBrowser(t *testing.T) *browser {
	t.Helper()
	name := ""
	for _, n := range []string{"chromium", "chromium-browser", "google-chrome", "google-chrome-stable"} {
		if path, err := exec.LookPath(n); err == nil {
			name = path
			break
		}
	}
	if name == "" {
		t.Fatal("no Chromium to look at the page with: on Debian, apt-get install chromium (.ci/run does)")
	}
	profile, err := os.MkdirTemp("", "browser")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(profile) }) // helpers of a browser that has ended may still write there
	ours, theirs, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	theirs2, ours2, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	b := &browser{t: t, in: ours2, waiting: map[int]chan reply{}, gone: make(chan struct{})}
	b.cmd = exec.Command(name, "--headless", "--remote-debugging-pipe", "--no-sandbox", "--disable-gpu", "--disable-quic", "--disable-dev-shm-usage",
		"--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-extensions",
		"--hide-scrollbars", "--user-data-dir="+profile, "about:blank")
	b.cmd.ExtraFiles = []*os.File{theirs2, theirs}
	if err := b.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	theirs.Close()
	theirs2.Close()
	go b.read(ours)
	t.Cleanup(func() {
		_, _ = b.try("", "Browser.close", nil) // it may be gone
		ours2.Close()
		ended := make(chan struct{})
		go func() { defer close(ended); _ = b.cmd.Wait() }()
		select {
		case <-ended:
		case <-time.After(10 * time.Second):
			_ = b.cmd.Process.Kill()
			<-ended
		}
		<-b.gone
	})
	var target struct{ TargetID string }
	b.call("", "Target.createTarget", map[string]any{"url": "about:blank"}, &target)
	var attached struct{ SessionID string }
	b.call("", "Target.attachToTarget", map[string]any{"targetId": target.TargetID, "flatten": true}, &attached)
	b.session = attached.SessionID
	for _, domain := range []string{"Page", "Runtime", "Log"} {
		b.call(b.session, domain+".enable", nil, nil)
	}
	return b
}

// read takes what the browser says until its pipe ends.
func (b *browser) read(from io.ReadCloser) {
	defer close(b.gone)
	defer from.Close()
	for r := bufio.NewReader(from); ; {
		line, err := r.ReadBytes(0)
		if err != nil {
			return
		}
		var m struct {
			ID     int
			Method string
			Params json.RawMessage
			reply
		}
		if json.Unmarshal(line[:len(line)-1], &m) != nil {
			continue
		}
		b.mu.Lock()
		switch m.Method {
		case "Runtime.exceptionThrown", "Log.entryAdded":
			b.console = append(b.console, string(m.Params))
		}
		if w := b.waiting[m.ID]; w != nil {
			delete(b.waiting, m.ID)
			w <- m.reply
		}
		b.mu.Unlock()
	}
}

// try sends one command and waits for its answer.
func (b *browser) try(session, method string, params any) (json.RawMessage, error) {
	w := make(chan reply, 1)
	b.mu.Lock()
	b.next++
	msg := map[string]any{"id": b.next, "method": method}
	if params != nil {
		msg["params"] = params
	}
	if session != "" {
		msg["sessionId"] = session
	}
	b.waiting[b.next] = w
	line, err := json.Marshal(msg)
	if err == nil {
		_, err = b.in.Write(append(line, 0))
	}
	b.mu.Unlock()
	if err != nil {
		return nil, err
	}
	select {
	case r := <-w:
		if r.Error != nil {
			return nil, fmt.Errorf("%s: %s", method, r.Error.Message)
		}
		return r.Result, nil
	case <-b.gone:
		return nil, fmt.Errorf("%s: the browser is gone", method)
	case <-time.After(patience):
		return nil, fmt.Errorf("%s: no answer in %v", method, patience)
	}
}

func (b *browser) call(session, method string, params, result any) {
	b.t.Helper()
	raw, err := b.try(session, method, params)
	if err == nil && result != nil {
		err = json.Unmarshal(raw, result)
	}
	if err != nil {
		b.t.Fatal(err)
	}
}

// open loads a page in a window of so many pixels.
func (b *browser) open(url string, width, height int) {
	b.t.Helper()
	b.call(b.session, "Emulation.setDeviceMetricsOverride", map[string]any{"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}, nil)
	b.call(b.session, "Page.navigate", map[string]any{"url": url}, nil)
}

// dark chooses between the dark and the light page.
func (b *browser) dark(on bool) {
	b.t.Helper()
	value := "light"
	if on {
		value = "dark"
	}
	b.call(b.session, "Emulation.setEmulatedMedia", map[string]any{"features": []map[string]string{{"name": "prefers-color-scheme", "value": value}}}, nil)
}

// eval is the value of a JavaScript expression.
func (b *browser) eval(expression string, result any) {
	b.t.Helper()
	var r struct {
		Result           struct{ Value json.RawMessage }
		ExceptionDetails *struct {
			Text      string
			Exception struct{ Description string }
		}
	}
	b.call(b.session, "Runtime.evaluate", map[string]any{"expression": expression, "returnByValue": true, "awaitPromise": true}, &r)
	if r.ExceptionDetails != nil {
		b.t.Fatalf("%s: %s %s", expression, r.ExceptionDetails.Text, r.ExceptionDetails.Exception.Description)
	}
	if err := json.Unmarshal(r.Result.Value, result); err != nil {
		b.t.Fatalf("%s: %v", expression, err)
	}
}

// await waits until an expression is true.
func (b *browser) await(what, expression string) {
	b.t.Helper()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(patience); ; <-tick.C {
		var ok bool
		if b.eval("Boolean("+expression+")", &ok); ok {
			return
		}
		if time.Now().After(deadline) {
			var text string
			b.eval("document.body.innerText", &text)
			b.t.Fatalf("no %s; the page says:\n%s\n%s", what, text, b.complaints())
		}
	}
}

// key presses and releases a key.
func (b *browser) key(name string, code int, text string) {
	b.t.Helper()
	b.call(b.session, "Input.dispatchKeyEvent", map[string]any{"type": "keyDown", "key": name, "code": name, "windowsVirtualKeyCode": code, "text": text}, nil)
	b.call(b.session, "Input.dispatchKeyEvent", map[string]any{"type": "keyUp", "key": name, "code": name, "windowsVirtualKeyCode": code}, nil)
}

// complaints are the errors of pages, scripts and policies so far.
func (b *browser) complaints() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return append([]string(nil), b.console...)
}
