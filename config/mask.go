package config

import (
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"unicode"
)

// masked stands for what is not shown.
const masked = "****"

// knownSchemes are those that are certainly no piece of a secret.
var knownSchemes = []string{"nats", "tls", "ws", "wss", "grpc", "grpcs", "http", "https", "tcp", "ftp", "unix"}

// nextServer is where another server of a list begins.
var nextServer = regexp.MustCompile(`(?i),\s*(` + strings.Join(knownSchemes, "|") + `)://`)

// userInURL finds an address with a login, whatever else is in the text: NATS_URL's
// value in another setting's place. ipc://@name is none.
var userInURL = regexp.MustCompile(`://[^@]*[^/@]@`)

// hasLogin says whether a list of addresses has an @ that is not of an ipc:// path.
func hasLogin(list string) bool {
	for item := range strings.SplitSeq(list, ",") {
		if strings.Contains(item, "@") && !strings.HasPrefix(strings.TrimSpace(item), "ipc://") {
			return true
		}
	}
	return false
}

// CheckLogin refuses an endpoint with a login, which it does not show: others quote
// what they do not understand.
func CheckLogin(endpoint string) error {
	if hasLogin(endpoint) {
		return wantf("no user or password in an endpoint: %s", maskURLs(endpoint))
	}
	return nil
}

// maskURLs makes a list of addresses fit to be shown. Such text may be
// mistyped in any way and hold a password all the same: with a comma, a slash
// or an @ in it, without the host behind it, in the path or the query. So the
// list is not trusted to be one: nothing before the last @ of the whole text
// is shown, and of the rest only what is certainly a host and its port.
func maskURLs(text string) string {
	at := strings.LastIndexByte(text, '@')
	if at < 0 {
		return maskHosts(text)
	}
	scheme, user := cutScheme(text[:at])
	if strings.ContainsAny(nextServer.ReplaceAllString(user, ""), "/?#") {
		return scheme + masked // the @ may stand in a path or a query
	}
	return scheme + masked + "@" + maskHosts(text[at+1:])
}

// maskHosts shows the addresses of a list up to the first that is not quite
// one: what follows may be a piece of the same secret.
func maskHosts(list string) string {
	var shown []string
	for item := range strings.SplitSeq(list, ",") {
		item = strings.TrimSpace(item)
		text, whole := maskHost(item)
		if shown = append(shown, text); !whole {
			break
		}
	}
	return strings.Join(shown, ",")
}

// maskHost shows one address without an @; whole says that nothing was hidden.
func maskHost(item string) (text string, whole bool) {
	scheme, rest := cutScheme(item)
	if scheme == "" {
		if s, r, ok := strings.Cut(item, "://"); ok {
			if len(s) > 8 || strings.Trim(s, "abcdefghijklmnopqrstuvwxyz") != "" {
				return masked, false
			}
			scheme, rest = s+"://", r // a mistyped scheme
		}
	}
	end := strings.IndexAny(rest, "/?#")
	if end < 0 {
		end = len(rest)
	}
	authority, tail := rest[:end], rest[end:]
	switch host, _, colon := strings.Cut(authority, ":"); {
	case isAuthority(authority) && (tail == "" || tail == "/"):
		return item, true
	case isAuthority(authority):
		return scheme + authority + tail[:1] + masked, false
	case colon && isHost(host):
		return scheme + host + ":" + masked, false
	}
	return scheme + masked, false
}

// cutScheme cuts a known scheme off.
func cutScheme(text string) (scheme, rest string) {
	i := strings.Index(text, "://")
	if i < 0 || !slices.Contains(knownSchemes, strings.ToLower(strings.TrimSpace(text[:i]))) {
		return "", text
	}
	return strings.TrimSpace(text[:i+3]), text[i+3:]
}

// isAuthority says whether text is certainly no more than a host and a number,
// either of which may be missing.
func isAuthority(text string) bool {
	if inside, ok := strings.CutPrefix(text, "["); ok {
		ip, port, ok := strings.Cut(inside, "]")
		addr, err := netip.ParseAddr(ip)
		return ok && err == nil && addr.Zone() == "" && (port == "" || isPort(strings.TrimPrefix(port, ":")))
	}
	host, port, colon := strings.Cut(text, ":")
	return (host == "" || isHost(host)) && (!colon || isPort(port))
}

// isPort is generous: a number that is too large is one all the same.
func isPort(text string) bool { return len(text) <= 5 && strings.Trim(text, "0123456789") == "" }

// isIP says whether text is an address, without brackets.
func isIP(text string) bool {
	_, err := netip.ParseAddr(text)
	return err == nil
}

// isHost says whether text looks like a name or an IPv4 address. A token that
// stands in its place seldom does: most are longer than a label may be.
func isHost(text string) bool {
	if text == "" || len(text) > 253 {
		return false
	}
	for label := range strings.SplitSeq(text, ".") {
		if len(label) > 63 || strings.ContainsFunc(label, func(r rune) bool {
			return r != '-' && r != '_' && !unicode.IsLetter(r) && !unicode.IsDigit(r)
		}) {
			return false
		}
	}
	return true
}
