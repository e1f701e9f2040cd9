package config

import (
	"slices"
	"strings"
)

// checkNATSURL looks at each server.
func (l *loader) checkNATSURL() {
	ws, bare := 0, false
	for i, server := range l.cfg.NATSURL {
		hasUser, hasScheme := strings.Contains(server, "@"), strings.Contains(server, "://")
		if bare && hasUser && !hasScheme {
			// nats://u:12,y@h reads as two servers, and would be shown so.
			l.problemOf("NATS_URL", inEntry(i, len(l.cfg.NATSURL), wantf("nats:// before a user, or %%2C for a comma in a password")).Error())
			return
		}
		bare = bare || !hasUser
		if err := checkURL(server, false, true, "nats", "tls", "ws", "wss"); err != nil {
			l.problemOf("NATS_URL", inEntry(i, len(l.cfg.NATSURL), err).Error())
			return
		}
		if strings.HasPrefix(server, "ws") {
			ws++
		}
	}
	if ws > 0 && ws < len(l.cfg.NATSURL) {
		l.problemOf("NATS_URL", "want all servers by ws:// and wss://, or none: the client cannot mix them")
	}
}

// checkNATSLogin allows one way to log in.
func (l *loader) checkNATSLogin() {
	if l.has("SINK") && l.cfg.Sink == SinkStdout {
		return // checkIdle speaks of these
	}
	var ways []string
	for _, name := range []string{"NATS_CREDS_FILE", "NATS_NKEY_FILE", "NATS_USER", "NATS_TOKEN"} {
		if l.field(name).text() != "" {
			ways = append(ways, name)
		}
	}
	if slices.ContainsFunc(l.cfg.NATSURL, func(s string) bool { return strings.Contains(s, "@") }) {
		ways = append(ways, "credentials in NATS_URL")
	}
	if l.has("SINK") && l.cfg.Sink == SinkJetStream && len(l.cfg.NATSURL) == 0 {
		l.problemOf("SINK", "want "+Prefix+"_NATS_URL with SINK=jetstream: the embedded server has no JetStream")
	}
	switch {
	case len(ways) > 1:
		l.problemOf(l.secretName(ways[0]), "want one way to log in to NATS, not "+strings.Join(ways, " and "))
	case len(ways) == 1 && len(l.cfg.NATSURL) == 0:
		l.problemOf(l.secretName(ways[0]), "want "+Prefix+"_NATS_URL with it: the embedded server takes no credentials")
	}
}

// checkUser: a password belongs to somebody.
func (l *loader) checkUser(user, password string) {
	if l.field(password).text() != "" && l.field(user).text() == "" {
		l.problemOf(l.secretName(password), "want "+Prefix+"_"+user+" with it")
	}
}

// secretName is the setting that a secret was really given by: itself or its file.
func (l *loader) secretName(name string) string {
	if l.cfg.Origin(name) == FromFile {
		return name + "_FILE"
	}
	return name
}

// checkMembership: Dynamo's routers hear only what they would hear from a
// Dynamo worker, on its subject.
func (l *loader) checkMembership() {
	c := l.cfg
	if c.Membership == MembershipOff {
		return
	}
	switch {
	case c.Sink != SinkNATS:
		l.problemOf("MEMBERSHIP", "want SINK=nats with it: Dynamo's routers do not read "+c.Sink)
	case c.Profile != ProfileDynamo:
		l.problemOf("MEMBERSHIP", "want PROFILE=dynamo with it: routers that keep records read no other")
	case c.Subject != "":
		l.problemOf("MEMBERSHIP", "want no SUBJECT with it: routers listen on the profile's own")
	case c.Membership == MembershipFile && c.MembershipPath == "":
		l.problemOf("MEMBERSHIP", "want "+Prefix+"_MEMBERSHIP_PATH (or DYN_FILE_KV) with MEMBERSHIP=file")
	}
}

// idle are settings that mean something only where used says so. Set
// elsewhere they would be ignored in silence, which is never what was meant.
var idle = []struct {
	names, where, by string // by: the setting that decides
	used             func(*Config) bool
}{
	{
		"NATS_URL NATS_CREDS_FILE NATS_NKEY_FILE NATS_USER NATS_PASSWORD NATS_PASSWORD_FILE NATS_TOKEN NATS_TOKEN_FILE NATS_TLS_CA NATS_TLS_CERT NATS_TLS_KEY SUBJECT",
		"SINK=nats or jetstream", "SINK", func(c *Config) bool { return c.Sink != SinkStdout },
	},
	{
		"NATS_TLS_CA NATS_TLS_CERT NATS_TLS_KEY",
		"NATS_URL", "NATS_URL", func(c *Config) bool { return len(c.NATSURL) > 0 || c.Sink == SinkStdout },
	},
	{"STREAM STREAM_CREATE", "SINK=jetstream", "SINK", func(c *Config) bool { return c.Sink == SinkJetStream }},
	{"REGISTER_WORKER REQUEST_PLANE RECOVERY_ADDR", "MEMBERSHIP", "MEMBERSHIP", func(c *Config) bool { return c.Membership != MembershipOff }},
	{"MEMBERSHIP_PATH", "MEMBERSHIP=file", "MEMBERSHIP", func(c *Config) bool { return c.Membership == MembershipFile }},
	{
		"POD_NAME POD_NAMESPACE POD_UID WORKER_CONTAINER",
		"MEMBERSHIP=kubernetes", "MEMBERSHIP", func(c *Config) bool { return c.Membership == MembershipKubernetes },
	},
	{
		"ETCD_ENDPOINTS ETCD_USER ETCD_PASSWORD ETCD_PASSWORD_FILE ETCD_TLS_CA ETCD_TLS_CERT ETCD_TLS_KEY",
		"MEMBERSHIP=etcd", "MEMBERSHIP", func(c *Config) bool { return c.Membership == MembershipEtcd },
	},
	{
		"DISCOVERY_TOKEN DISCOVERY_TOKEN_FILE REWRITE_LOOPBACK",
		"discovery, not with ENDPOINTS", "ENGINE", func(c *Config) bool { return !c.IsStatic() },
	},
}

// checkIdle refuses settings that would be ignored. A command that has a part
// of the settings ignores the rest anyway, so only the relay is checked.
func (l *loader) checkIdle() {
	if len(l.fields) < len(fields(l.cfg)) {
		return
	}
	for _, rule := range idle {
		if rule.used(l.cfg) || l.unread[rule.by] {
			continue
		}
		for _, name := range strings.Fields(rule.names) {
			f := l.field(name)
			origin := l.cfg.Origin(name)
			if l.bad[name] || origin == FromDefault || origin == FromFile || f.text() == f.defaultText() {
				continue
			}
			l.problemOf(name, "want it only with "+rule.where+", where it means something")
		}
	}
}
