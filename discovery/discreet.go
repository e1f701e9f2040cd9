package discovery

import (
	"fmt"
	"strings"
)

// leastSecret is the shortest token that is looked for in what peers say: a
// shorter one is no secret, and part of too many words.
const leastSecret = 8

// hide takes the token out of what a peer says. Whoever was shown it can say it
// back, and what peers say goes into logs and status.
func (o *Options) hide(said string) string {
	if len(o.Token) < leastSecret {
		return said
	}
	return strings.ReplaceAll(said, o.Token, "[DISCOVERY_TOKEN]")
}

// discreet is a reply without the token: an answer that repeats it anywhere is
// none, because no engine's does.
func (o *Options) discreet(a *answer, err error) (*answer, error) {
	if err != nil {
		f := *asFailure(err)
		f.text = o.hide(f.text)
		return nil, &f
	}
	if text := fmt.Sprintf("%+v", *a); o.hide(text) != text {
		return nil, failf(broken, "its answer repeats DISCOVERY_TOKEN: who answers there is no engine")
	}
	return a, nil
}
