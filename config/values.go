package config

import (
	"errors"
	"fmt"
	"math/bits"
	"net/url"
	"slices"
	"strconv"
	"strings"
)

// Size is a number of bytes.
type Size int64

var units = []struct {
	name string
	n    uint64
}{
	{"", 1}, {"b", 1},
	{"k", 1e3}, {"kb", 1e3}, {"ki", 1 << 10}, {"kib", 1 << 10},
	{"m", 1e6}, {"mb", 1e6}, {"mi", 1 << 20}, {"mib", 1 << 20},
	{"g", 1e9}, {"gb", 1e9}, {"gi", 1 << 30}, {"gib", 1 << 30},
	{"t", 1e12}, {"tb", 1e12}, {"ti", 1 << 40}, {"tib", 1 << 40},
}

// Set reads a whole number and a unit: 64MiB, 64Mi, 64MB, 64M or plain bytes.
// Case does not matter: M is a million, never a milli.
func (s *Size) Set(text string) error {
	text = strings.TrimSpace(text)
	digits := strings.IndexFunc(text, func(r rune) bool { return r < '0' || r > '9' })
	if digits < 0 {
		digits = len(text)
	}
	n, err := strconv.ParseUint(text[:digits], 10, 63)
	if err != nil {
		return errors.New("no size")
	}
	unit := strings.ToLower(strings.TrimSpace(text[digits:]))
	for _, u := range units {
		if u.name != unit {
			continue
		}
		hi, lo := bits.Mul64(n, u.n)
		if hi != 0 || lo > 1<<63-1 {
			return errors.New("too large")
		}
		*s = Size(lo)
		return nil
	}
	return errors.New("unknown unit")
}

// String is the size in the largest binary unit that gives a whole number.
func (s Size) String() string {
	for _, u := range []struct {
		name string
		n    Size
	}{{"TiB", 1 << 40}, {"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10}} {
		if s != 0 && s%u.n == 0 {
			return strconv.FormatInt(int64(s/u.n), 10) + u.name
		}
	}
	return strconv.FormatInt(int64(s), 10)
}

// Optional is a number that may be absent; 0 is a value like any other.
type Optional[T uint32 | uint64] struct {
	Value T
	Has   bool
}

// Set reads a decimal number; the empty text is no number.
func (o *Optional[T]) Set(text string) error {
	*o = Optional[T]{}
	text = strings.TrimSpace(text)
	if text == "" {
		return nil
	}
	width := 64
	if uint64(^T(0)) == 1<<32-1 {
		width = 32
	}
	n, err := strconv.ParseUint(text, 10, width)
	if err != nil {
		return wantf("a whole number from 0 to %d", uint64(^T(0)))
	}
	*o = Optional[T]{Value: T(n), Has: true}
	return nil
}

// String is the number, or "" when there is none.
func (o Optional[T]) String() string {
	if !o.Has {
		return ""
	}
	return strconv.FormatUint(uint64(o.Value), 10)
}

// Secret is text that no way of printing shows; string(s) is the text itself.
type Secret string

// Set takes any text.
func (s *Secret) Set(text string) error {
	*s = Secret(text)
	return nil
}

// String is a mask, or "" when there is no secret.
func (s Secret) String() string {
	if s == "" {
		return ""
	}
	return masked
}

// GoString is the mask, for %#v.
func (s Secret) GoString() string { return strconv.Quote(s.String()) }

// MarshalText is the mask, for JSON and logs.
func (s Secret) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// URL is the address of a server. A mistaken one may hold credentials, which
// no way of printing shows; string(u) is as written.
type URL string

// Set takes any text; what is allowed is checked with the other settings.
func (u *URL) Set(text string) error {
	*u = URL(strings.TrimSpace(text))
	return nil
}

// String is the address, credentials masked.
func (u URL) String() string { return maskURLs(string(u)) }

// GoString is the masked address, for %#v.
func (u URL) GoString() string { return strconv.Quote(u.String()) }

// MarshalText is the masked address, for JSON and logs.
func (u URL) MarshalText() ([]byte, error) { return []byte(u.String()), nil }

// URLs is a list of server addresses, each with or without a scheme. They may
// hold credentials, which no way of printing shows; the items are as written.
type URLs []string

// Set reads a comma separated list.
func (u *URLs) Set(text string) error {
	items, err := splitList(text)
	if err != nil {
		return err
	}
	*u = items
	return nil
}

// String is the list as it would be written, credentials masked.
func (u URLs) String() string { return maskURLs(strings.Join(u, ",")) }

// GoString is the masked list, for %#v.
func (u URLs) GoString() string { return strconv.Quote(u.String()) }

// MarshalText is the masked list, for JSON and logs.
func (u URLs) MarshalText() ([]byte, error) { return []byte(u.String()), nil }

// splitList splits at commas and trims; empty items are refused, since they
// are more often a variable that was not filled in than meant.
func splitList(text string) ([]string, error) {
	if strings.TrimSpace(text) == "" {
		return nil, nil
	}
	items := strings.Split(text, ",")
	for i, item := range items {
		if items[i] = strings.TrimSpace(item); items[i] == "" {
			return nil, wantf("no empty entry in the list (number %d of %d is)", i+1, len(items))
		}
	}
	return items, nil
}

// checkURL says what is wrong with one server address; schemes are the
// allowed ones, the first of which is meant when none is written; credentials
// says whether a user may stand before the host.
func checkURL(text string, portNeeded, credentials bool, schemes ...string) error {
	want := func(why string) error {
		last := len(schemes) - 1
		return wantf("host:port behind %s:// or %s:// (%s)", strings.Join(schemes[:last], "://, "), schemes[last], why)
	}
	if !strings.Contains(text, "://") {
		text = schemes[0] + "://" + text
	}
	u, err := url.Parse(text)
	if err != nil {
		return want("this is no address") // the parser's text would quote credentials
	}
	known := false
	for _, s := range schemes {
		known = known || u.Scheme == s
	}
	switch port, err := strconv.Atoi(u.Port()); {
	case !known && slices.Contains(knownSchemes, u.Scheme):
		return want(fmt.Sprintf("the scheme is %q", u.Scheme))
	case !known:
		return want("the scheme is another") // or a piece of a password
	case u.User != nil && !credentials:
		return want("it takes no user or password")
	case u.Hostname() == "":
		return want("there is no host")
	case !isHost(u.Hostname()) && !isIP(u.Hostname()): // as with quotes of an env file, or $NAME that nothing has filled in
		return want("the host has a character that none has")
	case u.Port() == "" && portNeeded:
		return want("there is no port")
	case u.Port() != "" && (err != nil || port < 1 || port > 65535):
		return want("a port is from 1 to 65535")
	case u.Path != "" && u.Path != "/" || u.RawQuery != "" || u.Fragment != "":
		return want("nothing may follow the port")
	}
	return nil
}

// wantError is a value's problem told by what would be right.
type wantError string

func (e wantError) Error() string { return "want " + string(e) }

func wantf(format string, args ...any) error {
	return wantError(fmt.Sprintf(format, args...))
}
