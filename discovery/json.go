package discovery

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strings"
)

// finite makes JSON of what Python's json.dumps may write: NaN, Infinity and
// -Infinity, which are no JSON, become null. Strings stay as they are.
func finite(text []byte) []byte {
	if !bytes.Contains(text, []byte("NaN")) && !bytes.Contains(text, []byte("Infinity")) {
		return text
	}
	out := make([]byte, 0, len(text))
	quoted := false
	for i := 0; i < len(text); i++ {
		c := text[i]
		if quoted {
			out = append(out, c)
			if c == '\\' && i+1 < len(text) {
				i++
				out = append(out, text[i])
			} else if c == '"' {
				quoted = false
			}
			continue
		}
		rest := text[i:]
		matched := false
		for _, word := range []string{"NaN", "Infinity", "-Infinity"} {
			if bytes.HasPrefix(rest, []byte(word)) {
				out = append(out, "null"...)
				i += len(word) - 1
				matched = true
				break
			}
		}
		if matched {
			continue
		}
		quoted = c == '"'
		out = append(out, c)
	}
	return out
}

// jsonText says what is wrong with a JSON text, without repeating it.
func jsonText(err error) string {
	var wrong *json.UnmarshalTypeError
	if errors.As(err, &wrong) {
		what := "it"
		if wrong.Field != "" {
			what = wrong.Field
		}
		found, _, _ := strings.Cut(wrong.Value, " ") // the value itself may be a secret's
		if found = "a " + found; strings.ContainsAny(found[2:3], "ao") {
			found = "an" + found[1:]
		}
		want := "an object"
		switch wrong.Type.Kind() {
		case reflect.Uint32:
			want = "a whole number from 0 to 4294967295"
		case reflect.String:
			want = "a string"
		case reflect.Bool:
			want = "true or false"
		case reflect.Slice:
			want = "a list"
		}
		return fmt.Sprintf("%s is %s, want %s", what, found, want)
	}
	return clean(err.Error())
}

// elements calls each with the elements of a list in JSON that is valid, at
// most maxSources of them; more says that there are further ones.
func elements(list []byte, each func(i int, raw json.RawMessage)) (more bool, err error) {
	dec := json.NewDecoder(bytes.NewReader(list))
	if first, err := dec.Token(); err != nil || first != json.Delim('[') {
		var l []struct{}
		return false, json.Unmarshal(list, &l) // which says what it is instead
	}
	for i := 0; dec.More(); i++ {
		if i == maxSources {
			return true, nil
		}
		var raw json.RawMessage
		if err := dec.Decode(&raw); err != nil {
			return false, err
		}
		each(i, raw)
	}
	return false, nil
}

// furtherSources refuses what is beyond maxSources.
func (a *answer) furtherSources() { a.refuse("further sources", "at most %d are used", maxSources) }
