package config

import "strings"

// notYet lists what settings.md knows and this version does not do, as
// NAME=value or, for any value, NAME. Whoever builds one deletes its line.
var notYet = []string{
	"MEMBERSHIP=etcd",
	"MEMBERSHIP=kubernetes",
}

// checkNotYet refuses what is asked for and not there.
func (l *loader) checkNotYet() {
	for _, feature := range notYet {
		name, value, hasValue := strings.Cut(feature, "=")
		if !l.has(name) || !l.cfg.given(name) {
			continue
		}
		if text := l.field(name).text(); text != "" && (!hasValue || text == value) {
			l.problemOf(name, feature+" is not in this version")
		}
	}
}
