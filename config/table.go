package config

import (
	"flag"
	"fmt"
	"os"
	"reflect"
	"strings"
	"time"
)

// Prefix begins every variable.
const Prefix = "KVRELAY"

// Setting is one row of the table of settings.
type Setting struct {
	Name    string // without prefix: NATS_URL
	Var     string // KVRELAY_NATS_URL
	Flag    string // nats-url
	Default string // as text; "" is none
	Meaning string
	Secret  bool
}

// Origin says where a setting's value came from.
type Origin string

const (
	FromDefault Origin = "default"
	FromEnv     Origin = "environment"
	FromFlag    Origin = "flag"
	FromFile    Origin = "file"    // a secret read from its _FILE
	Derived     Origin = "derived" // from other settings
)

// Value is a setting with the value in force, fit to be shown: a secret is
// masked, and so are credentials in addresses. Origin is $NAME where the default
// is another program's variable of that name.
type Value struct {
	Setting `json:"-"`
	Name    string `json:"name"`
	Text    string `json:"value"`
	Origin  Origin `json:"from"`
}

// field is one setting of one Config.
type field struct {
	Setting
	value    reflect.Value
	def      string // the default as written in the tag
	oneof    []string
	min, max string
	isURL    bool
	isAddr   bool
	fileOf   string
	verbatim bool
}

// fields are the settings of c in the order of the struct.
func fields(c *Config) []field {
	v := reflect.ValueOf(c).Elem()
	t := v.Type()
	var all []field
	for i := range t.NumField() {
		tag := t.Field(i).Tag
		name := tag.Get("env")
		if name == "" {
			continue
		}
		f := field{
			Setting: Setting{
				Name:    name,
				Var:     Prefix + "_" + name,
				Flag:    strings.ReplaceAll(strings.ToLower(name), "_", "-"),
				Default: tag.Get("default"),
				Meaning: tag.Get("doc"),
				Secret:  tag.Get("secret") == "true",
			},
			value:    v.Field(i),
			def:      tag.Get("default"),
			oneof:    strings.Fields(tag.Get("oneof")),
			min:      tag.Get("min"),
			max:      tag.Get("max"),
			isURL:    tag.Get("url") == "true",
			isAddr:   tag.Get("addr") == "true",
			fileOf:   tag.Get("fileof"),
			verbatim: tag.Get("verbatim") == "true",
		}
		if shown := tag.Get("shown"); shown != "" {
			f.Default = shown
		}
		all = append(all, f)
	}
	return all
}

// Table is every setting in the order of the documentation.
func Table() []Setting {
	all := fields(new(Config))
	table := make([]Setting, len(all))
	for i, f := range all {
		table[i] = f.Setting
	}
	return table
}

// Masked is every setting with the value in force and where it came from, in the order of Table.
func (c *Config) Masked() []Value {
	all := fields(c)
	values := make([]Value, len(all))
	for i, f := range all {
		values[i] = Value{Setting: f.Setting, Name: f.Name, Text: f.mask(f.text()), Origin: c.Origin(f.Name)}
		if strings.HasPrefix(f.def, "$") && values[i].Origin == FromDefault && values[i].Text != "" && f.defaultText() != "" {
			values[i].Origin = Origin(f.def)
		}
	}
	return values
}

// Origin says where the setting of that name (without prefix) came from.
func (c *Config) Origin(name string) Origin {
	if o, ok := c.origins[name]; ok {
		return o
	}
	return FromDefault
}

// given says whether someone set it.
func (c *Config) given(name string) bool { return c.Origin(name) != FromDefault }

// typed is the field as the flag package sees it; its parsers agree with
// envconfig's on every type used here.
func (f field) typed() flag.Value {
	ptr := f.value.Addr().Interface()
	if v, ok := ptr.(flag.Value); ok {
		return v
	}
	fs := flag.NewFlagSet("", flag.ContinueOnError)
	switch p := ptr.(type) {
	case *string:
		fs.StringVar(p, f.Flag, *p, "")
	case *bool:
		fs.BoolVar(p, f.Flag, *p, "")
	case *int:
		fs.IntVar(p, f.Flag, *p, "")
	case *time.Duration:
		fs.DurationVar(p, f.Flag, *p, "")
	default:
		panic(fmt.Sprintf("config: no parser for %T of %s", ptr, f.Name))
	}
	return fs.Lookup(f.Flag).Value
}

// text is the value as it would be written.
func (f field) text() string { return f.typed().String() }

// defaultText is the default as it stands in this environment.
func (f field) defaultText() string {
	if name, ok := strings.CutPrefix(f.def, "$"); ok {
		return os.Getenv(name)
	}
	return f.def
}

// isPlain says whether the field is a number, a duration or yes or no.
func (f field) isPlain() bool {
	_, own := f.value.Addr().Interface().(flag.Value)
	return !own && f.value.Kind() != reflect.String
}

// normalize takes the white space around a text away, since nobody means it,
// and brings a word from a closed list to lower case.
func (f field) normalize() {
	if f.value.Kind() != reflect.String || f.Secret || f.verbatim {
		return
	}
	text := strings.TrimSpace(f.value.String())
	if len(f.oneof) > 0 {
		text = strings.ToLower(text)
	}
	f.value.SetString(text)
}

// inRange says whether the value is among those allowed.
func (f field) inRange() bool {
	if len(f.oneof) > 0 {
		for _, word := range f.oneof {
			if f.value.String() == word {
				return true
			}
		}
		return false
	}
	if f.min != "" && f.value.Int() < f.bound(f.min) {
		return false
	}
	return f.max == "" || f.value.Int() <= f.bound(f.max)
}

// bound is the number that a min or max tag stands for.
func (f field) bound(tag string) int64 {
	b := field{value: reflect.New(f.value.Type()).Elem()}
	if err := b.typed().Set(tag); err != nil {
		panic(fmt.Sprintf("config: bound %q of %s: %v", tag, f.Name, err))
	}
	return b.value.Int()
}

// want says what would be right.
func (f field) want() string {
	if len(f.oneof) > 0 {
		return "one of " + strings.Join(f.oneof, ", ")
	}
	limits := ""
	switch {
	case f.min != "" && f.max != "":
		limits = " from " + f.min + " to " + f.max
	case f.min != "":
		limits = " of at least " + f.min
	}
	switch f.value.Interface().(type) {
	case bool:
		return "true or false"
	case int:
		return "a whole number" + limits
	case time.Duration:
		return "a duration" + limits + " with its unit, such as 500ms, 2s or 1m30s"
	case Size:
		return "a size such as 64MiB, 64MB or 67108864 (bytes)," + strings.Replace(limits, " of", "", 1)
	}
	return "another value"
}

// mask makes a value fit to be shown.
func (f field) mask(text string) string {
	switch {
	case text == "":
		return ""
	case f.Secret:
		return masked
	case f.isURL, userInURL.MatchString(text), f.isAddr && hasLogin(text): // all but the first in a setting that takes none
		return maskURLs(text)
	}
	return text
}
