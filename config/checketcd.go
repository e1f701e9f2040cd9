package config

import "strings"

// checkEtcd looks at each server. All are asked with TLS or none is.
func (l *loader) checkEtcd() {
	c := l.cfg
	if c.Membership != MembershipEtcd {
		return
	}
	if len(c.EtcdEndpoints) == 0 {
		l.problemOf("MEMBERSHIP", "want "+Prefix+"_ETCD_ENDPOINTS (or ETCD_ENDPOINTS) with MEMBERSHIP=etcd")
		return
	}
	schemes := map[string]bool{}
	for i, server := range c.EtcdEndpoints {
		if err := checkURL(server, true, false, "http", "https"); err != nil {
			l.problemOf("ETCD_ENDPOINTS", inEntry(i, len(c.EtcdEndpoints), err).Error())
			return
		}
		scheme, _, _ := strings.Cut(server, "://")
		schemes[scheme] = true // a bare address is another's equal
	}
	if schemes["http"] && schemes["https"] {
		l.problemOf("ETCD_ENDPOINTS", "want all servers by https://, or all by http://: they are asked alike")
	}
	for _, name := range []string{"ETCD_TLS_CA", "ETCD_TLS_CERT"} {
		if schemes["http"] && l.field(name).text() != "" {
			l.problemOf(name, "want https:// in ETCD_ENDPOINTS with it: http:// is without TLS")
		}
	}
}

// checkEtcdUser: etcd's client logs in with both or not at all.
func (l *loader) checkEtcdUser() {
	l.checkUser("ETCD_USER", "ETCD_PASSWORD")
	if l.cfg.Membership == MembershipEtcd && l.cfg.EtcdUser != "" && l.cfg.EtcdPassword == "" {
		l.problemOf("ETCD_USER", "want "+Prefix+"_ETCD_PASSWORD or "+Prefix+"_ETCD_PASSWORD_FILE with it")
	}
}
