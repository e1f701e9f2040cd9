package config

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"testing"
)

func TestSize(t *testing.T) {
	for text, want := range map[string]Size{
		"0": 0, "1": 1, "64MiB": 64 << 20, "64Mi": 64 << 20, "64MB": 64e6, "64M": 64e6, "64mib": 64 << 20, "2 GiB": 2 << 30,
		"10k": 10e3, "10KiB": 10 << 10, "1T": 1e12, "1TiB": 1 << 40, "9223372036854775807": 1<<63 - 1, " 5b ": 5,
	} {
		var s Size
		if err := s.Set(text); err != nil || s != want {
			t.Errorf("%q = %d, %v; want %d", text, s, err, want)
		}
		var again Size
		if err := again.Set(s.String()); err != nil || again != s {
			t.Errorf("%d written as %q reads %d, %v", s, s, again, err)
		}
	}
	for _, text := range []string{"", "MiB", "-1", "+1", "1.5GiB", "64Q", "64 M B", "8388608TiB", "9223372036854775808", "0x10", "1e6", "６４"} {
		s := Size(7)
		if err := s.Set(text); err == nil || s != 7 {
			t.Errorf("%q passed as %d", text, s)
		}
	}
}

func TestEndpoint(t *testing.T) {
	for text, want := range map[string]Endpoint{
		"tcp://127.0.0.1:5557":              {Host: "127.0.0.1", Port: 5557},
		"tcp://engine-0.engine:1":           {Host: "engine-0.engine", Port: 1},
		"tcp://[::1]:65535":                 {Host: "::1", Port: 65535},
		"tcp://[fe80::1%eth0]:5557":         {Host: "fe80::1%eth0", Port: 5557},
		"listen:tcp://*:5557":               {Listen: true, Host: "*", Port: 5557},
		"listen:tcp://0.0.0.0:5557":         {Listen: true, Host: "0.0.0.0", Port: 5557},
		"ipc:///run/kv/events.sock":         {Path: "/run/kv/events.sock"},
		"ipc://@abstract":                   {Path: "@abstract"},
		"listen:tcp://[::]:5557":            {Listen: true, Host: "::", Port: 5557},
		"ipc://" + strings.Repeat("p", 103): {Path: strings.Repeat("p", 103)},
	} {
		got, err := ParseEndpoint(text)
		if err != nil || got != want {
			t.Errorf("%q = %+v, %v; want %+v", text, got, err, want)
		}
		if got.String() != text {
			t.Errorf("%q is written %q", text, got)
		}
	}
	for _, text := range []string{
		"", "h:5557", "tcp://", "tcp://h", "tcp://h:", "tcp://:5557", "tcp://h:0", "tcp://h:65536", "tcp://h:-1", "tcp://h:+1", "tcp://h:5557/x",
		"tcp://::1:5557", "tcp://[::g]:1", "tcp://*:5557", "tcp://0.0.0.0:5557", "tcp://[::]:5557", "tcp://a b:1", "tcp://u@h:1", "tcp://h*:1",
		"TCP://h:1", "udp://h:1", "inproc://x", "ipc://", "ipc://@", "ipc://" + strings.Repeat("p", 104), "listen:ipc:///x", "listen:h:1",
		"listen:listen:tcp://h:1", "listen:tcp://h:0", " tcp://h:1",
	} {
		if got, err := ParseEndpoint(text); err == nil {
			t.Errorf("%q passed as %+v", text, got)
		} else if !strings.HasPrefix(err.Error(), "want ") {
			t.Errorf("%q: %v does not say what would be right", text, err)
		}
	}
}

func TestSources(t *testing.T) {
	clean(t)
	for _, c := range []struct {
		args string
		want []string
	}{
		{"--endpoints=tcp://h:5557", []string{"0 tcp://h:5557"}},
		{"--endpoints=tcp://h:5557 --replay-endpoints=tcp://h:6557", []string{"0 tcp://h:5557 tcp://h:6557"}},
		{"--endpoints=tcp://h:5557 --replay-endpoints=none", []string{"0 tcp://h:5557"}},
		{"--endpoints=tcp://h:5557 --replay-endpoints=tcp://h:6557 --ranks=2", []string{"0 tcp://h:5557 tcp://h:6557", "1 tcp://h:5558 tcp://h:6558"}},
		// Engines add the rank's own number, so the second host of a deployment has the same base.
		{"--endpoints=tcp://h:5557 --ranks=2 --first-rank=2", []string{"2 tcp://h:5559", "3 tcp://h:5560"}},
		{"--endpoints=tcp://h:5557 --first-rank=2", []string{"2 tcp://h:5557"}},
		{"--endpoints=ipc:///a,ipc:///b --replay-endpoints=tcp://h:1 --first-rank=4", []string{"4 ipc:///a tcp://h:5", "5 ipc:///b tcp://h:6"}},
		{"--endpoints=listen:tcp://*:5557 --ranks=2", []string{"0 listen:tcp://*:5557", "1 listen:tcp://*:5558"}},
	} {
		var got []string
		for _, s := range mustLoad(t, strings.Fields(c.args)...).Sources() {
			line := fmt.Sprint(s.Rank, " ", s.Live)
			if s.HasReplay {
				line += " " + s.Replay.String()
			}
			got = append(got, line)
		}
		if fmt.Sprint(got) != fmt.Sprint(c.want) {
			t.Errorf("%s: %q, want %q", c.args, got, c.want)
		}
	}
}

func TestDerivedRanksAreTold(t *testing.T) {
	clean(t)
	c := mustLoad(t, "--endpoints=tcp://h:1,tcp://h:2")
	if c.Ranks != 2 || c.Origin("RANKS") != Derived {
		t.Errorf("RANKS = %d from %s", c.Ranks, c.Origin("RANKS"))
	}
}

func TestCheckSubject(t *testing.T) {
	for _, good := range []string{"a", "a.b-c_d.é", "{namespace}.{component}.{endpoint}", "x{worker_id}y.{dp_rank}"} {
		if err := CheckSubject(good, false); err != nil {
			t.Errorf("%q: %v", good, err)
		}
	}
	for _, bad := range []string{"", ".", "a.", ".a", "a..b", "a b", "a\tb", "a.*", "a.>", "{rank}", "{", "}", "a}b{", "{{namespace}}", "{}", "$SYS.a", strings.Repeat("a", 513), "a\x7f"} {
		if err := CheckSubject(bad, false); err == nil {
			t.Errorf("%q passed", bad)
		}
	}
	if err := CheckSubject("{worker_id}.{dp_rank}", true); err != nil {
		t.Error(err)
	}
	if err := CheckSubject("{worker_id}", true); err == nil {
		t.Error("a subject for all ranks passed")
	}
}

// Pinned: another value would make each relay another worker at its next upgrade.
func TestDeriveWorkerID(t *testing.T) {
	const pinned = 7883885804813000
	if got := DeriveWorkerID("dynamo", "pod-0", "tcp://127.0.0.1:5557"); got != pinned {
		t.Errorf("id = %d, want %d", got, pinned)
	}
	seen := map[uint64]string{}
	for _, in := range [][3]string{{"a", "b", "c"}, {"ab", "", "c"}, {"", "ab", "c"}, {"a", "bc", ""}, {"a", "", "bc"}, {"", "", ""}} {
		id := DeriveWorkerID(in[0], in[1], in[2])
		if id == 0 || id >= 1<<53 || seen[id] != "" {
			t.Errorf("%q: id %d (also %s)", in, id, seen[id])
		}
		seen[id] = fmt.Sprintf("%q", in)
	}
	clean(t)
	c := mustLoad(t, "--endpoints=tcp://127.0.0.1:5557,tcp://127.0.0.1:5558")
	if got := c.Worker("POD-0"); got != pinned {
		t.Errorf("Worker = %d, want %d", got, pinned)
	}
	if got := mustLoad(t, "--endpoints=tcp://h:1", "--worker-id=0").Worker("x"); got != 0 {
		t.Errorf("WORKER_ID=0 gave %d", got)
	}
}

func TestNearest(t *testing.T) {
	words := []string{"RANKS", "FIRST_RANK", "NATS_URL", "NATS_USER", "SINK"}
	for word, want := range map[string]string{
		"RANK": "RANKS", "NATS_URLS": "NATS_URL", "NAST_URL": "NATS_URL", "SNIK": "SINK", "FIRSTRANK": "FIRST_RANK", "ZZZ": "", "": "",
		strings.Repeat("R", 5000): "",
	} {
		if got := Nearest(word, words); got != want {
			t.Errorf("Nearest(%.20q) = %q, want %q", word, got, want)
		}
	}
}

func TestLongValueIsCut(t *testing.T) {
	clean(t, static, "LOST="+strings.Repeat("é", 500)+"\x1b[31m")
	got := strings.Join(problems(t), "\n")
	if len(got) > 300 || strings.ContainsRune(got, '\x1b') || strings.ContainsRune(got, '\uFFFD') {
		t.Errorf("%d bytes: %q", len(got), got)
	}
}

// No way of printing settings or their problems may show a secret.
func TestSecretsAreNeverShown(t *testing.T) {
	const secret = "hunter2"
	show := func(t *testing.T, c *Config, err error) {
		t.Helper()
		var b strings.Builder
		fmt.Fprintf(&b, "%v %+v %#v %+v %v", c, c, *c, *c, err)
		fmt.Fprintf(&b, "%v %+v %#v", c.Masked(), c.Masked(), c.Masked())
		for _, v := range []any{c, c.Masked(), err} {
			j, jerr := json.Marshal(v)
			if jerr != nil {
				t.Fatal(jerr)
			}
			b.Write(j)
		}
		slog.New(slog.NewTextHandler(&b, nil)).Info("settings", "config", c, "value", *c, "password", c.NATSPassword, "url", c.NATSURL, "err", err)
		slog.New(slog.NewJSONHandler(&b, nil)).Info("settings", "config", c, "password", c.NATSPassword, "url", c.NATSURL, "err", err)
		if at := strings.Index(b.String(), secret); at >= 0 {
			t.Errorf("shown: …%s…", b.String()[max(0, at-60):at+20])
		}
	}
	file := secretFile(t, secret+"\n")
	twoLines := secretFile(t, secret+"\n"+secret)
	for _, env := range []string{
		"NATS_URL=h NATS_USER=u NATS_PASSWORD=hunter2",
		"NATS_URL=h NATS_TOKEN=hunter2",
		"NATS_PASSWORD=hunter2", // without a user
		"NATS_URL=h NATS_TOKEN=hunter2 NATS_USER=u NATS_PASSWORD=hunter2",
		"NATS_URL=nats://u:hunter2@h:4222,nats://hunter2@h",
		"NATS_URL=nats://u:hunter2@h:99999",
		"NATS_URL=nats://u:hunter2@[h",
		"NATS_URL=u:hunter2@h,,",
		"NATS_URL=u:hunter2@h NATS_TOKEN=t",
		"DISCOVERY_URL=http://u:hunter2@h:1",
		"DISCOVERY_TOKEN=hunter2",
		"ETCD_ENDPOINTS=http://u:hunter2@h:1 MEMBERSHIP=etcd",
		"ETCD_PASSWORD=hunter2",
		"NATS_URL=h NATS_TOKEN_FILE=" + file,
		"NATS_PASSWORD_FILE=" + file,
		"NATS_URL=h NATS_TOKEN_FILE=" + twoLines,
		"NATS_URL=h NATS_TOKEN_FILE=" + file + " NATS_TOKEN=hunter2",
		"NATS_TOKN=hunter2",
	} {
		t.Run(env, func(t *testing.T) {
			clean(t, append(strings.Fields(env), static)...)
			c, err := Load(nil, nil)
			show(t, c, err)
		})
		t.Run("flags "+env, func(t *testing.T) {
			clean(t, static)
			var args []string
			for _, entry := range strings.Fields(env) {
				name, value, _ := strings.Cut(entry, "=")
				args = append(args, "--"+strings.ReplaceAll(strings.ToLower(name), "_", "-"), value)
			}
			c, err := Load(nil, args)
			show(t, c, err)
		})
	}
}

func TestSecretFile(t *testing.T) {
	file := secretFile(t, "from file\r\n")
	for _, c := range []struct {
		env, args string
		want      Secret
		say       string
	}{
		{"NATS_TOKEN_FILE=" + file, "", "from file", ""},
		{"", "--nats-token-file=" + file, "from file", ""},
		{"NATS_TOKEN_FILE=" + file, "--nats-token=flag", "flag", ""},
		{"NATS_TOKEN=env", "--nats-token-file=" + file, "from file", ""},
		{"NATS_TOKEN=env NATS_TOKEN_FILE=" + file, "", "env", "not both"},
		{"", "--nats-token=x --nats-token-file=" + file, "x", "not both"},
		{"NATS_TOKEN_FILE=/no/such/file", "", "", "no such file"},
		{"NATS_TOKEN_FILE=" + t.TempDir(), "", "", "cannot be read"},
		{"NATS_TOKEN_FILE=" + secretFile(t, ""), "", "", "empty"},
		{"NATS_TOKEN_FILE=" + secretFile(t, "\n\n"), "", "", "empty"},
		{"NATS_TOKEN_FILE=" + secretFile(t, "a\nb\n"), "", "", "several lines"},
		{"NATS_TOKEN_FILE=" + secretFile(t, strings.Repeat("a", maxSecret+1)), "", "", "64KiB"},
	} {
		t.Run(c.env+c.args, func(t *testing.T) {
			clean(t, append(strings.Fields(c.env), static, "NATS_URL=h")...)
			cfg, err := Load(nil, strings.Fields(c.args))
			if got := fmt.Sprint(err); c.say == "" && err != nil || !strings.Contains(got, c.say) {
				t.Errorf("err = %v, want %q", err, c.say)
			}
			if cfg.NATSToken != c.want {
				t.Errorf("token = %q, want %q", string(cfg.NATSToken), string(c.want))
			}
		})
	}
}

// What an env file quotes, and what nothing has filled in, is no host.
func TestHosts(t *testing.T) {
	for host, right := range map[string]bool{
		"nats": true, "nats.nats.svc.cluster.local.": true, "my_nats-0": true, "10.0.0.1": true, "[::1]": true, "bücher": true,
		`"nats"`: false, "'nats'": false, "$NATS": false, "$(NATS)": false, "<nats>": false, "nats;x": false, "na ts": false,
	} {
		for _, env := range []string{"NATS_URL=" + host, "NATS_URL=nats://" + host + ":4222", "DISCOVERY_URL=http://" + host + ":8000", "ENDPOINTS=tcp://" + host + ":5557"} {
			clean(t, env)
			if err := func() error { _, err := Load(nil, nil); return err }(); (err == nil) != right {
				t.Errorf("%s: %v, want it right: %v", env, err, right)
			}
		}
	}
}
