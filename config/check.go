package config

import (
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"unicode"
)

// checks are the rules that need more than one value's own type and range.
// A rule runs when the command has all the settings it is about, and none of
// them has a problem already.
var checks = []struct {
	about []string
	run   func(*loader)
}{
	{[]string{"NAMESPACE"}, func(l *loader) { l.checkName("NAMESPACE", l.cfg.Namespace) }},
	{[]string{"COMPONENT"}, func(l *loader) { l.checkName("COMPONENT", l.cfg.Component) }},
	{[]string{"ENDPOINT_NAME"}, func(l *loader) { l.checkName("ENDPOINT_NAME", l.cfg.EndpointName) }},
	{[]string{"ADMIN_ADDR"}, func(l *loader) {
		if l.cfg.AdminAddr = strings.TrimSpace(l.cfg.AdminAddr); strings.EqualFold(l.cfg.AdminAddr, Off) {
			l.cfg.AdminAddr = Off
			return
		}
		l.checkAddr("ADMIN_ADDR", l.cfg.AdminAddr, ", or off")
	}},
	{[]string{"RECOVERY_ADDR"}, func(l *loader) {
		if l.cfg.RecoveryAddr != "" {
			l.checkAddr("RECOVERY_ADDR", l.cfg.RecoveryAddr, "")
		}
	}},
	{[]string{"DISCOVERY_URL"}, func(l *loader) {
		if l.cfg.DiscoveryURL == "" {
			return
		}
		if !strings.Contains(string(l.cfg.DiscoveryURL), "://") {
			l.problemOf("DISCOVERY_URL", "want grpc://, grpcs://, http:// or https:// before the host")
		} else if err := checkURL(string(l.cfg.DiscoveryURL), true, false, "grpc", "grpcs", "http", "https"); err != nil {
			l.problemOf("DISCOVERY_URL", err.Error())
		}
	}},
	{[]string{"ENGINE", "ENDPOINTS", "DISCOVERY_URL"}, (*loader).checkEngine},
	{[]string{"DISCOVERY_TOKEN"}, func(l *loader) { l.checkSecret("DISCOVERY_TOKEN", l.cfg.DiscoveryToken) }},
	{[]string{"NATS_PASSWORD"}, func(l *loader) { l.checkSecret("NATS_PASSWORD", l.cfg.NATSPassword) }},
	{[]string{"NATS_TOKEN"}, func(l *loader) { l.checkSecret("NATS_TOKEN", l.cfg.NATSToken) }},
	{[]string{"ETCD_PASSWORD"}, func(l *loader) { l.checkSecret("ETCD_PASSWORD", l.cfg.EtcdPassword) }},
	{[]string{"DISCOVERY_URL", "DISCOVERY_TOKEN"}, (*loader).checkToken},
	{[]string{"ENDPOINTS", "REPLAY_ENDPOINTS", "RANKS", "FIRST_RANK"}, (*loader).checkRanks},
	{[]string{"HEARTBEAT", "PEER_TIMEOUT"}, func(l *loader) {
		if l.cfg.PeerTimeout <= l.cfg.Heartbeat {
			l.problemOf(l.blame("PEER_TIMEOUT", "HEARTBEAT"), fmt.Sprintf(
				"want PEER_TIMEOUT (%v) longer than HEARTBEAT (%v)", l.cfg.PeerTimeout, l.cfg.Heartbeat))
		}
	}},
	{[]string{"NATS_URL"}, (*loader).checkNATSURL},
	{[]string{"NATS_URL", "NATS_CREDS_FILE", "NATS_NKEY_FILE", "NATS_USER", "NATS_PASSWORD", "NATS_TOKEN"}, (*loader).checkNATSLogin},
	{[]string{"NATS_USER", "NATS_PASSWORD"}, func(l *loader) { l.checkUser("NATS_USER", "NATS_PASSWORD") }},
	{[]string{"MEMBERSHIP", "ETCD_USER", "ETCD_PASSWORD"}, (*loader).checkEtcdUser},
	{[]string{"NATS_TLS_CERT", "NATS_TLS_KEY"}, func(l *loader) { l.together("NATS_TLS_CERT", "NATS_TLS_KEY") }},
	{[]string{"ETCD_TLS_CERT", "ETCD_TLS_KEY"}, func(l *loader) { l.together("ETCD_TLS_CERT", "ETCD_TLS_KEY") }},
	{[]string{"SUBJECT", "SINK"}, func(l *loader) {
		if l.cfg.Subject == "" {
			return
		}
		if err := CheckSubject(l.cfg.Subject, l.cfg.Sink == SinkJetStream); err != nil {
			l.problemOf("SUBJECT", err.Error())
		}
	}},
	{[]string{"STREAM"}, func(l *loader) {
		if s := l.cfg.Stream; s == "" || len(s) > 255 || strings.ContainsAny(s, ".*>/\\ \t\r\n\x00") {
			l.problemOf("STREAM", "want a stream name without dots, spaces, slashes and wildcards")
		}
	}},
	{[]string{"MEMBERSHIP", "SINK", "PROFILE", "SUBJECT", "MEMBERSHIP_PATH"}, (*loader).checkMembership},
	{[]string{"MEMBERSHIP", "ETCD_ENDPOINTS", "ETCD_TLS_CA", "ETCD_TLS_CERT"}, (*loader).checkEtcd},
	{[]string{"MEMBERSHIP", "REQUEST_PLANE", "RECOVERY_ADDR"}, (*loader).checkPlane},
	{[]string{"MEMBERSHIP", "NAMESPACE", "COMPONENT", "ENDPOINT_NAME"}, (*loader).checkDynamoNames},
	{[]string{"MEMBERSHIP", "REGISTER_WORKER", "WORKER_ID"}, (*loader).checkWorkerID},
	{[]string{"MEMBERSHIP", "WORKER_ID", "POD_NAME", "POD_NAMESPACE", "POD_UID", "WORKER_CONTAINER"}, (*loader).checkPod},
}

// infer fills in what follows from other settings.
func (l *loader) infer() {
	if n := len(l.cfg.Endpoints); n > 1 && l.has("RANKS") && !l.cfg.given("RANKS") && !l.bad["RANKS"] {
		l.cfg.Ranks = n
		l.cfg.origins["RANKS"] = Derived
	}
}

// check runs every rule that applies.
func (l *loader) check() {
	for _, c := range checks {
		if !slices.ContainsFunc(c.about, func(name string) bool { return !l.has(name) || l.bad[name] }) {
			c.run(l)
		}
	}
	l.checkIdle()
}

// has says whether the command has the setting.
func (l *loader) has(name string) bool {
	return slices.ContainsFunc(l.fields, func(f field) bool { return f.Name == name })
}

// field is the setting of that name, which the command has.
func (l *loader) field(name string) field {
	return l.fields[slices.IndexFunc(l.fields, func(f field) bool { return f.Name == name })]
}

// blame is the first of the names that someone set, else the first.
func (l *loader) blame(names ...string) string {
	for _, name := range names {
		if l.cfg.given(name) {
			return name
		}
	}
	return names[0]
}

func (l *loader) checkName(name, value string) {
	if value == "" || len(value) > 256 || strings.ContainsFunc(value, unicode.IsControl) {
		l.problemOf(name, "want 1 to 256 characters, none of them a control character")
	}
}

func (l *loader) checkAddr(name, value, or string) {
	host, port, err := net.SplitHostPort(value)
	if n, perr := strconv.Atoi(port); err != nil || perr != nil || n < 0 || n > 65535 || strings.ContainsAny(host, " /@*") {
		l.problemOf(name, "want host:port with a port from 0 (a free one) to 65535"+or)
	}
}

// together: two settings that mean nothing without each other.
func (l *loader) together(a, b string) {
	if hasA, hasB := l.field(a).text() != "", l.field(b).text() != ""; hasA != hasB {
		if hasB {
			a, b = b, a
		}
		l.problemOf(a, "want "+Prefix+"_"+b+" with it")
	}
}

// checkEngine: one way to find the engine's endpoints.
func (l *loader) checkEngine() {
	c := l.cfg
	listed := len(c.Endpoints) > 0
	switch {
	case c.Engine == EngineStatic && !listed:
		l.problemOf("ENGINE", "want "+Prefix+"_ENDPOINTS with ENGINE=static, such as tcp://127.0.0.1:5557")
	case c.Engine == EngineStatic && c.DiscoveryURL != "":
		l.problemOf("DISCOVERY_URL", "want no DISCOVERY_URL with ENGINE=static: the endpoints are "+Prefix+"_ENDPOINTS")
	case c.Engine != EngineStatic && c.Engine != EngineAuto && listed:
		l.problemOf("ENGINE", "want auto or static with "+Prefix+"_ENDPOINTS, or no ENDPOINTS: ENGINE="+c.Engine+" asks the engine for them")
	case c.Engine == EngineOpenEngine && strings.HasPrefix(strings.ToLower(string(c.DiscoveryURL)), "http"):
		l.problemOf("DISCOVERY_URL", "want grpc:// or grpcs:// with ENGINE=openengine, which speaks gRPC alone")
	}
}

// checkToken: a token does not cross the network in the clear.
func (l *loader) checkToken() {
	u, err := url.Parse(string(l.cfg.DiscoveryURL))
	if err != nil || l.cfg.DiscoveryToken == "" || l.cfg.DiscoveryURL == "" || strings.HasSuffix(u.Scheme, "s") {
		return
	}
	host := strings.TrimSuffix(strings.ToLower(u.Hostname()), ".")
	if ip, err := netip.ParseAddr(host); err == nil && ip.Unmap().IsLoopback() || host == "localhost" || strings.HasSuffix(host, ".localhost") {
		return
	}
	l.problemOf("DISCOVERY_URL", "want "+u.Scheme+"s:// with DISCOVERY_TOKEN: the token would cross the network in the clear")
}

// checkRanks: every rank has a number, a live endpoint and at most one replay
// endpoint, and no socket stands for two of them.
func (l *loader) checkRanks() {
	c := l.cfg
	if c.FirstRank+c.Ranks > 65536 {
		l.problemOf(l.blame("FIRST_RANK", "RANKS"), fmt.Sprintf("want ranks up to 65535: FIRST_RANK %d and RANKS %d end at %d",
			c.FirstRank, c.Ranks, c.FirstRank+c.Ranks-1))
		return
	}
	if !c.IsStatic() {
		return // the engine says what ranks there are
	}
	taken := map[string]string{}
	for _, list := range []struct {
		setting, what string
		ends          Endpoints
	}{{"ENDPOINTS", "live", c.Endpoints}, {"REPLAY_ENDPOINTS", "replay", c.ReplayEndpoints.List}} {
		ends, err := c.perRank(list.ends)
		if err != nil {
			l.problemOf(list.setting, err.Error())
			continue
		}
		for i, e := range ends {
			is := fmt.Sprintf("the %s endpoint of rank %d", list.what, c.FirstRank+i)
			if was, ok := taken[e.place()]; ok {
				l.problemOf(list.setting, fmt.Sprintf("want endpoints that do not overlap: %s is both %s and %s", e, was, is))
				break
			}
			taken[e.place()] = is
		}
	}
}
