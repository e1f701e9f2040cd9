package config

import (
	"strings"
	"testing"
	"time"
)

// White space around a value is taken away, however the value is given; in a
// topic and in a secret it counts.
func TestWhiteSpace(t *testing.T) {
	given := []string{
		"ENDPOINTS= tcp://h:1 ", "RANKS= 2\n", "FIRST_RANK=\t1", "CLEAR_ON_EXIT= true ", "DEAD_AFTER= 5s ", "HOLD_BYTES= 1MiB ", "LOST= keep ",
		"WORKER_ID= 7 ", "NATS_URL= h , i ", "NATS_USER=u", "NATS_PASSWORD= p ", "NAMESPACE= n ", "TOPIC= t ", "SUBJECT= a.b ", "ADMIN_ADDR= off ",
	}
	var flags []string
	for _, entry := range given {
		name, value, _ := strings.Cut(entry, "=")
		flags = append(flags, "--"+strings.ReplaceAll(strings.ToLower(name), "_", "-")+"="+value)
	}
	for from, load := range map[string]func() *Config{
		"environment": func() *Config { clean(t, given...); return mustLoad(t) },
		"flags":       func() *Config { clean(t); return mustLoad(t, flags...) },
	} {
		c := load()
		if c.Ranks != 2 || c.FirstRank != 1 || !c.ClearOnExit || c.DeadAfter != 5*time.Second || c.HoldBytes != 1<<20 || c.Lost != LostKeep ||
			c.WorkerID.Value != 7 || strings.Join(c.NATSURL, " ") != "h i" || c.Namespace != "n" || c.Subject != "a.b" || c.AdminAddr != Off {
			t.Errorf("%s: %+v", from, c)
		}
		if c.Topic != " t " || string(c.NATSPassword) != " p " {
			t.Errorf("%s: topic %q, password %q", from, c.Topic, string(c.NATSPassword))
		}
		if c.Origin("RANKS") == FromDefault {
			t.Errorf("%s: RANKS is from %s", from, c.Origin("RANKS"))
		}
	}
	for _, blank := range []string{"RANKS= ", "CLEAR_ON_EXIT= ", "DEAD_AFTER=\t", "ENGINE= ", "RANKS=2 3"} {
		clean(t, blank)
		if got := problems(t); len(got) != 1 || !strings.Contains(got[0], "want ") {
			t.Errorf("%q: %q", blank, got)
		}
	}
	clean(t, "RANKS= x ")
	if got := problems(t, "--ranks= 3 "); len(got) != 0 {
		t.Errorf("a flag that wins: %q", got)
	}
}

// A secret that cannot be sent is refused at start, with the setting's name.
func TestUnsendableSecrets(t *testing.T) {
	const want, https = "want it on one line", "DISCOVERY_URL=https://h:1"
	for _, c := range []struct {
		env          []string
		setting, say string
	}{
		{[]string{https, "DISCOVERY_TOKEN=hunter2\nx"}, "KVRELAY_DISCOVERY_TOKEN", want},
		{[]string{https, "DISCOVERY_TOKEN=hunter2\r"}, "KVRELAY_DISCOVERY_TOKEN", want},
		{[]string{https, "DISCOVERY_TOKEN=hunter2\x01"}, "KVRELAY_DISCOVERY_TOKEN", "printable ASCII"},
		{[]string{https, "DISCOVERY_TOKEN=hünter2"}, "KVRELAY_DISCOVERY_TOKEN", "printable ASCII"},
		{[]string{https, "DISCOVERY_TOKEN_FILE=" + secretFile(t, "hunter2\x7f\n")}, "KVRELAY_DISCOVERY_TOKEN_FILE", "printable ASCII"},
		{[]string{"NATS_URL=h", "NATS_TOKEN=hunter2\n"}, "KVRELAY_NATS_TOKEN", want},
		{[]string{"NATS_URL=h", "NATS_USER=u", "NATS_PASSWORD=hunter2\nx"}, "KVRELAY_NATS_PASSWORD", want},
		{[]string{"MEMBERSHIP=etcd", "ETCD_ENDPOINTS=h:1", "ETCD_USER=u", "ETCD_PASSWORD=hunter2\nx"}, "KVRELAY_ETCD_PASSWORD", want},
	} {
		clean(t, c.env...)
		got := problems(t)
		if len(got) != 1 || !strings.HasPrefix(got[0], c.setting+"=") || !strings.Contains(got[0], c.say) || strings.Contains(got[0], "nter2") {
			t.Errorf("%q: %q", c.env, got)
		}
	}
	clean(t, https, "DISCOVERY_TOKEN=a.b-c_~+/= d", "NATS_URL=h", "NATS_USER=u", "NATS_PASSWORD=pä\tss")
	mustLoad(t)
}

// Where another program's variable gives a default, the table says so.
func TestForeignDefaultIsTold(t *testing.T) {
	from := func(name string, args ...string) Origin {
		for _, v := range mustLoad(t, args...).Masked() {
			if v.Name == name {
				return v.Origin
			}
		}
		return ""
	}
	clean(t)
	if got := from("ETCD_ENDPOINTS"); got != FromDefault {
		t.Errorf("not set: %s", got)
	}
	t.Setenv("ETCD_ENDPOINTS", "http://e:1")
	if got := from("ETCD_ENDPOINTS"); got != "$ETCD_ENDPOINTS" {
		t.Errorf("from $ETCD_ENDPOINTS: %s", got)
	}
	if got := from("ETCD_ENDPOINTS", "--membership=etcd", "--etcd-endpoints=f:1"); got != FromFlag {
		t.Errorf("from a flag: %s", got)
	}
	t.Setenv("ETCD_ENDPOINTS", "a,,b") // cannot be read, so it counts as not set
	if got := from("ETCD_ENDPOINTS"); got != FromDefault {
		t.Errorf("unreadable: %s", got)
	}
}
