package config

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"strings"
)

// maxSecret bounds a secret's file; a larger one is refused unread.
const maxSecret = 64 << 10

// secretFiles reads the secrets whose _FILE setting is in force.
func (l *loader) secretFiles() {
	for _, f := range l.fields {
		if f.fileOf == "" || f.text() == "" || l.bad[f.Name] {
			continue
		}
		secret := l.field(f.fileOf)
		if here, there := l.cfg.Origin(f.Name), l.cfg.Origin(secret.Name); secret.text() != "" {
			if here == there {
				l.problemOf(f.Name, "want either this or "+secret.Var+", not both")
				continue
			}
			if there == FromFlag {
				continue // the flag wins over the file that the environment names
			}
		}
		text, err := readSecret(f.text())
		if err != nil {
			l.problemOf(f.Name, "want a file that holds "+secret.Var+" as one line ("+err.Error()+")")
			continue
		}
		secret.value.SetString(text)
		l.cfg.origins[secret.Name] = FromFile
		delete(l.texts, secret.Name)
	}
}

// checkSecret: a secret is one line, as its file is. A bearer token is a part
// of a header as well, which HTTP and gRPC refuse with other characters in it.
func (l *loader) checkSecret(name string, secret Secret) {
	switch {
	case strings.ContainsAny(string(secret), "\r\n\x00"):
		l.problemOf(l.secretName(name), "want it on one line, without a line break at its end")
	case name == "DISCOVERY_TOKEN" && strings.ContainsFunc(string(secret), func(r rune) bool { return r < ' ' || r > '~' }):
		l.problemOf(l.secretName(name), "want a token of printable ASCII characters")
	}
}

// readSecret reads a file of one line. Its errors never quote the content.
func readSecret(path string) (string, error) {
	file, err := os.Open(path)
	if err != nil {
		var pathErr *fs.PathError
		if errors.As(err, &pathErr) {
			err = pathErr.Err // the path is in the message already
		}
		return "", err
	}
	defer file.Close()
	data, err := io.ReadAll(io.LimitReader(file, maxSecret+1))
	if err != nil {
		return "", errors.New("it cannot be read")
	}
	// Editors and `kubectl create secret --from-file` leave a newline at the end.
	text := strings.TrimRight(string(data), "\r\n")
	switch {
	case len(data) > maxSecret:
		return "", errors.New("it is larger than 64KiB")
	case text == "":
		return "", errors.New("it is empty")
	case strings.ContainsAny(text, "\r\n\x00"):
		return "", errors.New("it has several lines")
	}
	return text, nil
}
