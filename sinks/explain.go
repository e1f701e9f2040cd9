package sinks

import (
	"cmp"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nkeys"
)

// Explain says in one line what to change where err is what nats.Connect said
// to servers. Its text stays the same while the trouble does, since the log
// tells each text once a minute.
func (a *Auth) Explain(servers []string, err error) error { return a.explain(servers, err, nil) }

// explain is Explain where a dialer has kept its error, which nats.go may not return.
func (a *Auth) explain(servers []string, err, dialErr error) error {
	where := redactAll(servers)
	op := new(net.OpError)
	if dialErr == nil && errors.As(err, &op) && op.Op == "dial" {
		dialErr = err
	}
	text := strings.ToLower(err.Error())
	switch {
	case errors.Is(err, nats.ErrNoServers), dialErr != nil && errors.Is(err, dialErr):
		return fmt.Errorf("NATS at %s cannot be reached (%w): check KVRELAY_NATS_URL or --nats-url, or start it", where, cmp.Or(dialErr, err))
	case strings.Contains(text, "nkeys not supported"):
		return fmt.Errorf("NATS at %s knows no nkeys: check %s", where, a.settings(servers...))
	case refused(text):
		return a.refusal(servers, err)
	case strings.Contains(text, "credentials") || strings.Contains(text, "decorated") || strings.Contains(text, "nkeys"):
		return fmt.Errorf("%s holds no usable credentials (%w)", a.settings(servers...), err)
	}
	if e := limited(where, err); e != nil {
		return e
	}
	if e := a.explainTLS(servers, err); e != nil {
		return e
	}
	if t := net.Error(nil); errors.As(err, &t) && t.Timeout() {
		return fmt.Errorf("NATS at %s takes the connection and does not answer in time (%w): a server that hangs; else check KVRELAY_NATS_URL: a WebSocket port needs ws:// or wss:// there, and a server that waits for TLS first (handshake_first) cannot be used", where, steady(err))
	}
	return fmt.Errorf("NATS at %s does not answer as NATS does (%w): check KVRELAY_NATS_URL; a WebSocket port needs ws:// or wss:// there, and a server that waits for TLS first (handshake_first) cannot be used", where, steady(err))
}

// steady is err without the address of our end, which differs each time.
func steady(err error) error {
	if op := new(net.OpError); errors.As(err, &op) {
		return op.Err
	}
	return err
}

// limited says which limit keeps us out, when err is that of one; else it is nil.
func limited(where string, err error) error {
	const need = "each kvrelay has two connections, and with REQUEST_PLANE=nats a third"
	switch text := strings.ToLower(err.Error()); {
	case strings.Contains(text, "account active connections exceeded"):
		return fmt.Errorf("NATS at %s takes no more connections of this account (%w): raise the account's limit there; %s", where, err, need)
	case strings.Contains(text, "maximum connections exceeded"):
		return fmt.Errorf("NATS at %s takes no more connections (%w): raise max_connections there; %s", where, err, need)
	case strings.Contains(text, "connection throttling"):
		return fmt.Errorf("NATS at %s turns connections away because too many come at once (%w): nothing to do if it ends soon, else raise connection_rate_limit in its tls block", where, err)
	case strings.Contains(text, "maximum subscriptions exceeded"):
		return fmt.Errorf("NATS at %s takes no more subscriptions (%w): raise max_subscriptions there, or the account's limit; kvrelay has a dozen a rank", where, err)
	}
	return nil
}

// refusal says in one line what was refused and which setting it came from.
func (a *Auth) refusal(servers []string, err error) error {
	where, text := redactAll(servers), strings.ToLower(err.Error())
	if strings.Contains(text, "authentication timeout") {
		return fmt.Errorf("NATS at %s did not end the login in time (%w): it, or the service that it asks about logins, is slow or away", where, err)
	}
	if end := a.end(); !end.IsZero() && end.Before(time.Now()) {
		return fmt.Errorf("NATS at %s refuses the credentials in %s, which ended at %s: put new ones there, they are read at each connection",
			where, a.settings(servers...), end.UTC().Format(time.RFC3339))
	}
	return fmt.Errorf("NATS at %s refuses %s (%w): check %s", where, a.what(servers...), err, a.settings(servers...))
}

// end is when the user in CredsFile ends; zero: never, or nobody knows. A server
// refuses one that has ended with the same words as an unknown one.
func (a *Auth) end() time.Time {
	if a.CredsFile == "" {
		return time.Time{}
	}
	b, err := os.ReadFile(a.CredsFile)
	if err != nil {
		return time.Time{}
	}
	jwt, err := nkeys.ParseDecoratedJWT(b)
	if err != nil {
		return time.Time{}
	}
	parts := strings.Split(jwt, ".")
	if len(parts) != 3 {
		return time.Time{}
	}
	body, err := base64.RawURLEncoding.DecodeString(parts[1])
	var claims struct {
		Exp int64 `json:"exp"`
	}
	if err != nil || json.Unmarshal(body, &claims) != nil || claims.Exp == 0 {
		return time.Time{}
	}
	return time.Unix(claims.Exp, 0)
}

func refused(text string) bool {
	return strings.Contains(text, "authorization") || strings.Contains(text, "authentication")
}

func redactAll(servers []string) string {
	names := make([]string, len(servers))
	for i, s := range servers {
		names[i] = redact(s)
	}
	return strings.Join(names, ",")
}

// inURL is the kind of credentials that the servers' addresses hold, "": none.
func inURL(servers []string) string {
	kind := ""
	for _, s := range servers {
		at := strings.LastIndexByte(s, '@')
		if at < 0 {
			continue
		}
		user := s[:at]
		if i := strings.Index(user, "://"); i >= 0 {
			user = user[i+len("://"):]
		}
		if strings.Contains(user, ":") {
			return "the user or password"
		}
		kind = "the token"
	}
	return kind
}

// what names the kind of credentials that were shown to servers, never their content.
func (a *Auth) what(servers ...string) string {
	switch {
	case a.CredsFile != "":
		return "the credentials"
	case a.NKeyFile != "":
		return "the nkey"
	case inURL(servers) != "": // nats.go prefers it to what follows
		return inURL(servers) + " in NATS_URL"
	case a.User != "":
		return "the user or password"
	case a.Token != "":
		return "the token"
	}
	return "a client without credentials"
}

// settings names what the credentials came from.
func (a *Auth) settings(servers ...string) string {
	switch {
	case a.CredsFile != "":
		return "KVRELAY_NATS_CREDS_FILE " + a.CredsFile
	case a.NKeyFile != "":
		return "KVRELAY_NATS_NKEY_FILE " + a.NKeyFile
	case inURL(servers) != "":
		return "KVRELAY_NATS_URL"
	case a.User != "":
		return "KVRELAY_NATS_USER and KVRELAY_NATS_PASSWORD"
	case a.Token != "":
		return "KVRELAY_NATS_TOKEN"
	}
	return "KVRELAY_NATS_CREDS_FILE, KVRELAY_NATS_USER or KVRELAY_NATS_TOKEN"
}
