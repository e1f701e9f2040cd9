package admin

import (
	"crypto/sha256"
	_ "embed"
	"encoding/base64"
	"encoding/json"
	"io"
	"net/http"
	"strings"
)

//go:embed page.html
var pageSource string

// makePage gives the page with the drop reasons' texts in it, and its
// Content-Security-Policy: its own style and script, named by their hashes,
// and requests to where it came from; nothing else.
func makePage() (html, policy string) {
	texts, err := json.Marshal(DropReasons())
	if err != nil {
		panic(err) // a map of texts
	}
	html = strings.Replace(pageSource, "/*reasons*/{}", string(texts), 1)
	return html, "default-src 'none'; connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; style-src " +
		hashOf(html, "style") + "; script-src " + hashOf(html, "script")
}

// hashOf names the content of the page's one element tag as a policy does.
func hashOf(html, tag string) string {
	_, rest, _ := strings.Cut(html, "<"+tag+">")
	body, _, _ := strings.Cut(rest, "</"+tag+">")
	sum := sha256.Sum256([]byte(body))
	return "'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) + "'"
}

func (s *Server) page(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.Header().Set("Content-Security-Policy", s.policy)
	_, _ = io.WriteString(w, s.html) // the client may be gone
}
