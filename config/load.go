package config

import (
	"errors"
	"flag"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"

	"github.com/kelseyhightower/envconfig"
)

// loader reads one Config.
type loader struct {
	cfg      *Config
	fields   []field           // those of this command
	flags    map[string]string // given flags by setting name
	bad      map[string]bool   // settings that have a problem
	unread   map[string]bool   // those of them that are at their default instead
	texts    map[string]string // the text a value was read from
	problems Problems
}

// Load reads the settings from the environment and args, flags winning, and
// checks them. fs may hold flags of a command's own; the settings' flags are
// added to it, and fs.Args is what follows them. names are the settings that
// the command has, without prefix; none means all of them, as the relay has,
// and then nothing may follow the flags.
//
// The error is flag.ErrHelp when help was asked for, else Problems. The Config
// is there in any case; values that could not be read are at their default.
func Load(fs *flag.FlagSet, args []string, names ...string) (*Config, error) {
	l := &loader{
		cfg:    &Config{origins: map[string]Origin{}},
		flags:  map[string]string{},
		bad:    map[string]bool{},
		unread: map[string]bool{},
		texts:  map[string]string{},
	}
	if fs == nil {
		fs = flag.NewFlagSet("kvrelay", flag.ContinueOnError)
	}
	for _, f := range fields(l.cfg) {
		if len(names) == 0 || slices.Contains(names, f.Name) || slices.Contains(names, f.fileOf) {
			l.fields = append(l.fields, f)
		}
		// Only a default taken from another program's variable can fail: it
		// is not ours to refuse, and counts as not set.
		_ = f.set(f.defaultText())
	}
	if err := l.parseFlags(fs, args); err != nil {
		return l.cfg, err
	}
	if len(names) == 0 && fs.NArg() > 0 {
		l.add(surplus(fs.Arg(0), flagBefore(fs, args[:len(args)-fs.NArg()])))
	}
	l.unknownVariables()
	for _, f := range l.fields {
		l.fromEnv(f)
		l.fromFlag(f)
	}
	l.secretFiles()
	for _, f := range l.fields {
		f.normalize()
		if !l.bad[f.Name] && !f.inRange() {
			l.problemOf(f.Name, "want "+f.want())
			l.reset(f)
		}
	}
	l.infer()
	l.check()
	if len(l.problems) > 0 {
		return l.cfg, l.problems
	}
	return l.cfg, nil
}

// set reads text into the field; the empty text is the type's zero.
func (f field) set(text string) error {
	if text == "" {
		f.value.SetZero()
		return nil
	}
	if f.isPlain() {
		text = strings.TrimSpace(text)
	}
	return f.typed().Set(text)
}

// fromEnv reads one variable, if it holds something.
func (l *loader) fromEnv(f field) {
	text := os.Getenv(f.Var)
	if text == "" {
		return
	}
	if err := f.process(text); err != nil {
		// A flag that wins makes the variable's value irrelevant.
		if _, ok := l.flags[f.Name]; !ok {
			l.problem(f, f.Var, text, want(f, err))
		}
		return
	}
	l.cfg.origins[f.Name], l.texts[f.Name] = FromEnv, text
}

// process lets envconfig read one variable, which holds text. It is asked
// variable by variable, since it ends at the first error.
func (f field) process(text string) error {
	if f.isPlain() && strings.TrimSpace(text) != text {
		return f.set(text) // envconfig takes no white space around numbers
	}
	one := reflect.New(reflect.StructOf([]reflect.StructField{{Name: f.Name, Type: f.value.Type()}}))
	if err := envconfig.Process(Prefix, one.Interface()); err != nil {
		var parse *envconfig.ParseError
		if errors.As(err, &parse) {
			err = parse.Err
		}
		return err
	}
	f.value.Set(one.Elem().Field(0))
	return nil
}

// fromFlag takes the flag's value, which wins. An empty one means the default.
func (l *loader) fromFlag(f field) {
	text, ok := l.flags[f.Name]
	if !ok {
		return
	}
	l.cfg.origins[f.Name], l.texts[f.Name] = FromFlag, text
	if text == "" && (len(f.oneof) > 0 || f.value.Kind() != reflect.String) {
		text = f.defaultText()
	}
	if err := f.set(text); err != nil {
		l.problem(f, "--"+f.Flag, text, want(f, err))
	}
}

// want says what would be right where err says what was wrong.
func want(f field, err error) string {
	var w wantError
	if errors.As(err, &w) {
		return w.Error()
	}
	return "want " + f.want()
}

// add notes a problem.
func (l *loader) add(p Problem) { l.problems = append(l.problems, p) }

// problem notes that a value could not be read.
func (l *loader) problem(f field, name, text, want string) {
	l.bad[f.Name] = true
	l.add(Problem{Name: name, Value: f.mask(text), Has: true, Want: want})
	l.reset(f)
}

// reset puts a setting whose value is no use back to its default.
func (l *loader) reset(f field) {
	_ = f.set(f.defaultText())
	l.unread[f.Name] = true
	delete(l.cfg.origins, f.Name)
}

// problemOf notes a problem with a setting's value, naming it the way it was given.
func (l *loader) problemOf(name, want string) {
	l.bad[name] = true
	i := slices.IndexFunc(l.fields, func(f field) bool { return f.Name == name })
	f := l.fields[i]
	p := Problem{Name: f.Var, Has: l.cfg.given(name), Value: f.mask(l.texts[name]), Want: want}
	if l.cfg.Origin(name) == FromFlag {
		p.Name = "--" + f.Flag
	}
	if p.Has && p.Value == "" {
		p.Value = f.mask(f.text())
	}
	l.add(p)
}

// serviceLink matches the variables by which Kubernetes tells a pod of the
// services of its namespace, with their values: a service called kvrelay or
// kvrelay-x is no typing error. KVRELAY_ADMIN_PORT=9558 is one.
var serviceLink = regexp.MustCompile(`^KVRELAY_(.+_)?(SERVICE_HOST=.*|SERVICE_PORT(_[^=]+)?=[0-9]+|` +
	`PORT(_[0-9]+_(TCP|UDP|SCTP))?=(tcp|udp|sctp)://.*|PORT_[0-9]+_(TCP|UDP|SCTP)_(PROTO|PORT|ADDR)=.*)$`)

// unknownVariables notes every KVRELAY_ variable that is no setting.
func (l *loader) unknownVariables() {
	var vars []string
	for _, s := range Table() {
		vars = append(vars, s.Var)
	}
	var unknown []string
	for _, entry := range os.Environ() {
		name, _, _ := strings.Cut(entry, "=")
		if strings.HasPrefix(name, Prefix+"_") && !slices.Contains(vars, name) && !serviceLink.MatchString(entry) {
			unknown = append(unknown, name)
		}
	}
	slices.Sort(unknown)
	for _, name := range unknown {
		say := "no such setting; `kvrelay config` lists them"
		if near := Nearest(strings.ToUpper(strings.TrimPrefix(name, Prefix+"_")), allNames()); near != "" {
			say = "no such setting; did you mean " + Prefix + "_" + near + "?"
		}
		l.add(Problem{Name: name, Want: say}) // without its value: it may be a secret
	}
}

// allNames are the names of every setting, without prefix.
func allNames() []string {
	var all []string
	for _, s := range Table() {
		all = append(all, s.Name)
	}
	return all
}
