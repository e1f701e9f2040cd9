package config

import (
	"errors"
	"flag"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kvrelay/kvrelay/internal/fuzzlimit"
)

// foreign are other programs' variables that are read.
var foreign = []string{"DYN_FILE_KV", "DYN_REQUEST_PLANE", "ETCD_ENDPOINTS", "POD_NAME", "POD_NAMESPACE", "POD_UID", "DYN_KUBE_DISCOVERY_MODE"}

// clean takes every KVRELAY_ variable of the surroundings away for the test,
// and sets those given as NAME=value without the prefix.
func clean(t *testing.T, env ...string) {
	t.Helper()
	for _, entry := range os.Environ() {
		name, value, _ := strings.Cut(entry, "=")
		if strings.HasPrefix(name, Prefix+"_") || slices.Contains(foreign, name) {
			t.Setenv(name, value) // restored afterwards
			os.Unsetenv(name)
		}
	}
	for _, entry := range env {
		name, value, _ := strings.Cut(entry, "=")
		t.Setenv(Prefix+"_"+name, value)
	}
}

// load reads all settings; static is what the relay cannot do without.
const static = "ENDPOINTS=tcp://127.0.0.1:5557"

func mustLoad(t *testing.T, args ...string) *Config {
	t.Helper()
	cfg, err := Load(nil, args)
	if err != nil {
		t.Fatalf("Load(%q): %v", args, err)
	}
	return cfg
}

// problems are the settings' problems as lines.
func problems(t *testing.T, args ...string) []string {
	t.Helper()
	_, err := Load(nil, args)
	if err == nil {
		return nil
	}
	var all Problems
	if !errors.As(err, &all) {
		t.Fatalf("Load: %v is no Problems", err)
	}
	var lines []string
	for _, p := range all {
		lines = append(lines, p.Error())
	}
	return lines
}

func TestDefaults(t *testing.T) {
	clean(t, static)
	c := mustLoad(t)
	for name, ok := range map[string]bool{
		"ENGINE": c.Engine == EngineAuto, "RANKS": c.Ranks == 1, "FIRST_RANK": c.FirstRank == 0,
		"TOPIC": c.Topic == "" && !c.TopicExact, "BLOCK_SIZE": c.BlockSize == 0, "WORKER_ID": !c.WorkerID.Has,
		"EAGLE": c.Eagle == EagleAuto, "IMAGE_TOKEN_ID": !c.ImageTokenID.Has && !c.VideoTokenID.Has,
		"SINK": c.Sink == SinkNATS, "NATS_URL": len(c.NATSURL) == 0, "PROFILE": c.Profile == ProfileDynamo,
		"NAMESPACE":  c.Namespace == "dynamo" && c.Component == "backend" && c.EndpointName == "generate",
		"MEMBERSHIP": c.Membership == MembershipOff && !c.RegisterWorker, "STREAM": c.Stream == "KVRELAY" && c.StreamCreate,
		"LOST": c.Lost == LostClear, "DUPLICATES": c.Duplicates == DuplicatesAuto,
		"HOLD_BYTES": c.HoldBytes == 64<<20 && c.MaxFrameBytes == 64<<20 && c.OutBytes == 64<<20,
		"DEAD_AFTER": c.DeadAfter == 30*time.Second,
		"REPLAY":     c.ReplayIdle == time.Second && c.ReplayAttempts == 8 && c.ReplayConcurrency == 8,
		"HEARTBEAT":  c.Heartbeat == 2*time.Second && c.PeerTimeout == 10*time.Second,
		"RECENT":     c.RecentEvents == 16384 && c.RecentBytes == 16<<20,
		"ADMIN_ADDR": c.AdminAddr == "127.0.0.1:9558" && !c.ClearOnExit,
		"LOG":        c.LogLevel == "info" && c.LogFormat == "auto",
	} {
		if !ok {
			t.Errorf("default of %s is wrong", name)
		}
	}
	if got := c.Origin("RANKS"); got != FromDefault {
		t.Errorf("origin of RANKS = %s", got)
	}
}

// The table is a contract that manifests rely on.
func TestTableNames(t *testing.T) {
	const contract = `ENGINE DISCOVERY_URL DISCOVERY_TOKEN DISCOVERY_TOKEN_FILE ENDPOINTS REPLAY_ENDPOINTS RANKS FIRST_RANK TOPIC
		TOPIC_EXACT BLOCK_SIZE REWRITE_LOOPBACK WORKER_ID EAGLE IMAGE_TOKEN_ID VIDEO_TOKEN_ID SINK NATS_URL NATS_CREDS_FILE
		NATS_NKEY_FILE NATS_USER NATS_PASSWORD NATS_PASSWORD_FILE NATS_TOKEN NATS_TOKEN_FILE NATS_TLS_CA NATS_TLS_CERT
		NATS_TLS_KEY PROFILE NAMESPACE COMPONENT ENDPOINT_NAME SUBJECT MEMBERSHIP REGISTER_WORKER MEMBERSHIP_PATH ETCD_ENDPOINTS
		ETCD_USER ETCD_PASSWORD ETCD_PASSWORD_FILE ETCD_TLS_CA ETCD_TLS_CERT ETCD_TLS_KEY RECOVERY_ADDR STREAM STREAM_CREATE
		LOST DUPLICATES HOLD_BYTES DEAD_AFTER MAX_FRAME_BYTES OUT_BYTES REPLAY_IDLE REPLAY_ATTEMPTS REPLAY_CONCURRENCY HEARTBEAT
		PEER_TIMEOUT RECENT_EVENTS RECENT_BYTES CLEAR_ON_EXIT ADMIN_ADDR LOG_LEVEL LOG_FORMAT`
	table := map[string]Setting{}
	for _, s := range Table() {
		if s.Var != "KVRELAY_"+s.Name || s.Meaning == "" || table[s.Name].Name != "" {
			t.Errorf("row %+v", s)
		}
		table[s.Name] = s
	}
	for _, name := range strings.Fields(contract) {
		if table[name].Name == "" {
			t.Errorf("%s is not in the table", name)
		}
	}
	if got := table["NATS_URL"].Flag; got != "nats-url" {
		t.Errorf("flag of NATS_URL = %q", got)
	}
}

// Every tag must be readable: a bad default or bound shows at the first start otherwise.
func TestTags(t *testing.T) {
	clean(t)
	for _, f := range fields(new(Config)) {
		if err := f.set(f.defaultText()); err != nil {
			t.Errorf("default of %s: %v", f.Name, err)
		}
		f.normalize()
		if !f.inRange() {
			t.Errorf("default %q of %s is not allowed", f.def, f.Name)
		}
		if f.fileOf != "" && !slices.Contains(allNames(), f.fileOf) {
			t.Errorf("%s is the file of %q", f.Name, f.fileOf)
		}
		if f.Secret && f.value.Type().Name() != "Secret" {
			t.Errorf("%s is secret and a plain %s", f.Name, f.value.Type())
		}
	}
}

func TestFlagsWin(t *testing.T) {
	clean(t, static, "NATS_URL=nats://env:4222", "RANKS=2", "TOPIC=kv@", "LOG_LEVEL=debug", "HEARTBEAT=nonsense", "SINK=stdout")
	c := mustLoad(t, "--nats-url", "nats://a:1,b", "-ranks=3", "--topic=", "--clear-on-exit", "--heartbeat=3s", "--sink=")
	if got := strings.Join(c.NATSURL, " "); got != "nats://a:1 b" {
		t.Errorf("NATS_URL = %q", got)
	}
	if c.Ranks != 3 || c.Topic != "" || !c.ClearOnExit || c.LogLevel != "debug" || c.Heartbeat != 3*time.Second || c.Sink != SinkNATS {
		t.Errorf("got %+v", c)
	}
	for name, want := range map[string]Origin{"NATS_URL": FromFlag, "LOG_LEVEL": FromEnv, "DEAD_AFTER": FromDefault} {
		if got := c.Origin(name); got != want {
			t.Errorf("origin of %s = %s, want %s", name, got, want)
		}
	}
}

// Other programs' variables of the same names without the prefix are not ours.
func TestNoBareNames(t *testing.T) {
	clean(t, static)
	t.Setenv("NAMESPACE", "kube-system")
	t.Setenv("RANKS", "7")
	t.Setenv("NATS_URL", "nats://elsewhere")
	c := mustLoad(t)
	if c.Namespace != "dynamo" || c.Ranks != 1 || len(c.NATSURL) != 0 {
		t.Errorf("read a variable without prefix: %q %d %q", c.Namespace, c.Ranks, c.NATSURL)
	}
}

func TestEmptyIsUnset(t *testing.T) {
	clean(t, static, "RANKS=", "SINK=", "HOLD_BYTES=", "NAMESPACE=", "REPLAY_ENDPOINTS=", "WORKER_ID=")
	c := mustLoad(t)
	if c.Ranks != 1 || c.Sink != SinkNATS || c.HoldBytes != 64<<20 || c.Namespace != "dynamo" {
		t.Errorf("got %+v", c)
	}
}

func TestOtherVariablesAsDefault(t *testing.T) {
	clean(t, static)
	t.Setenv("DYN_FILE_KV", "/var/kv")
	t.Setenv("ETCD_ENDPOINTS", "http://etcd:2379")
	c := mustLoad(t)
	if c.MembershipPath != "/var/kv" || len(c.EtcdEndpoints) != 1 || c.EtcdEndpoints[0] != "http://etcd:2379" {
		t.Errorf("got %q %q", c.MembershipPath, c.EtcdEndpoints)
	}
	t.Setenv("ETCD_ENDPOINTS", "a,,b") // not ours to refuse
	mustLoad(t)
}

// All at once: one of each kind of problem.
func TestAllAtOnce(t *testing.T) {
	clean(t, "RANKS=0", "HOLD_BYTES=64Q", "ENGINE=vlm", "NATS_URLS=x", "HEARTBEAT=20s", "DEAD_AFTER=30", "TOPIC_EXACT=perhaps",
		"ENDPOINTS=tcp://h", "SUBJECT=a..b", "WORKER_ID=-1", "IMAGE_TOKEN_ID=4294967296", "NATS_USER=u", "NATS_CREDS_FILE=f", "SINK=NATS")
	got := problems(t, "--lozt", "keep", "--nats-password", "p", "--recent-events", "x")
	want := []string{
		`--lozt: no such flag; did you mean --lost?`,
		`KVRELAY_NATS_URLS: no such setting; did you mean KVRELAY_NATS_URL?`,
		`KVRELAY_ENDPOINTS="tcp://h": want tcp://host:port (IPv6: tcp://[::1]:5557)`,
		`KVRELAY_WORKER_ID="-1": want a whole number from 0 to 18446744073709551615`,
		`KVRELAY_IMAGE_TOKEN_ID="4294967296": want a whole number from 0 to 4294967295`,
		`KVRELAY_TOPIC_EXACT="perhaps": want true or false`,
		`KVRELAY_HOLD_BYTES="64Q": want a size such as 64MiB, 64MB or 67108864 (bytes), at least 1`,
		`KVRELAY_DEAD_AFTER="30": want a duration from 1ms to 24h with its unit, such as 500ms, 2s or 1m30s`,
		`--recent-events="x": want a whole number from 1 to 1073741824`,
		`KVRELAY_ENGINE="vlm": want one of auto, vllm, sglang, openengine, static`,
		`KVRELAY_RANKS="0": want a whole number from 1 to 65536`,
		`KVRELAY_HEARTBEAT="20s": want PEER_TIMEOUT (10s) longer than HEARTBEAT (20s)`,
		`KVRELAY_NATS_CREDS_FILE="f": want one way to log in to NATS, not NATS_CREDS_FILE and NATS_USER`,
		`KVRELAY_SUBJECT="a..b": want no empty token: single dots, none at the ends`,
	}
	for _, line := range want {
		if !slices.Contains(got, line) {
			t.Errorf("missing  %s", line)
		}
	}
	for _, line := range got {
		if !slices.Contains(want, line) {
			t.Errorf("surplus  %s", line)
		}
	}
}

func TestUnknownVariable(t *testing.T) {
	for name, say := range map[string]string{
		"ENDPOINT":     "did you mean KVRELAY_ENDPOINTS?",
		"NATS_PASWORD": "did you mean KVRELAY_NATS_PASSWORD?",
		"NATS_USRE":    "did you mean KVRELAY_NATS_USER?",
		"nats_url":     "did you mean KVRELAY_NATS_URL?",
		"Nats_Usr":     "did you mean KVRELAY_NATS_USER?",
		"XYZZY_PLUGH":  "`kvrelay config` lists them",
		"ADMIN_PORT":   "no such setting",
		"PORT":         "no such setting",
	} {
		t.Run(name, func(t *testing.T) {
			clean(t, static, name+"=hunter2")
			got := problems(t)
			if len(got) != 1 || !strings.HasPrefix(got[0], "KVRELAY_"+name+": ") || !strings.Contains(got[0], say) || strings.Contains(got[0], "hunter2") {
				t.Errorf("got %q, want one that says %q", got, say)
			}
		})
	}
}

// A Kubernetes service called kvrelay puts these into every pod of its namespace.
func TestServiceLinksAreNoTypos(t *testing.T) {
	clean(t, static, "SERVICE_HOST=10.0.0.1", "SERVICE_PORT=9558", "SERVICE_PORT_METRICS=9558", "PORT=tcp://10.0.0.1:9558",
		"PORT_9558_TCP=tcp://10.0.0.1:9558", "PORT_9558_TCP_PROTO=tcp", "PORT_9558_TCP_PORT=9558", "PORT_9558_TCP_ADDR=10.0.0.1",
		"ADMIN_SERVICE_HOST=10.0.0.2", "ADMIN_PORT=tcp://10.0.0.2:80")
	mustLoad(t)
}

func TestArguments(t *testing.T) {
	clean(t, static)
	if got := problems(t, "--ranks", "1", "run"); len(got) != 1 || !strings.HasPrefix(got[0], "behind --ranks: ") {
		t.Errorf("got %q", got)
	}
	if got := problems(t, "--ranks"); len(got) != 1 || got[0] != "--ranks: want a value, as in --ranks=…" {
		t.Errorf("got %q", got)
	}
	// An unknown flag's value is skipped, not taken for an argument, nor shown.
	if got := problems(t, "--pasword", "hunter2", "--ranks=x"); len(got) != 2 || strings.Contains(strings.Join(got, ""), "hunter2") {
		t.Errorf("got %q", got)
	}
	// The rest of a secret that was not quoted is not shown either.
	if got := problems(t, "--nats-password", "correct", "horse", "--nats-user=u", "--nats-url=h"); strings.Contains(strings.Join(got, ""), "horse") {
		t.Errorf("got %q", got)
	}
	for _, help := range []string{"-h", "--help"} {
		if _, err := Load(nil, []string{help}); !errors.Is(err, flag.ErrHelp) {
			t.Errorf("%s: %v", help, err)
		}
	}
}

// A command with a part of the settings ignores the others, but not typos.
func TestPartOfTheSettings(t *testing.T) {
	clean(t, "RANKS=nonsense", "SINK=jetstream", "NATS_TOKEN_FILE="+secretFile(t, "tok\n"), "NATS_URL=nats://h")
	fs := flag.NewFlagSet("tail", flag.ContinueOnError)
	asJSON := fs.Bool("json", false, "")
	wait := fs.Duration("for", 0, "")
	c, err := Load(fs, []string{"--json", "--profile", "json", "-for", "20s", "subject.>"}, "NATS_URL", "NATS_TOKEN", "PROFILE")
	if err != nil {
		t.Fatal(err)
	}
	if !*asJSON || *wait != 20*time.Second || c.Profile != ProfileJSON || string(c.NATSToken) != "tok" || fs.Arg(0) != "subject.>" {
		t.Errorf("got %v %v %q %q %q", *asJSON, *wait, c.Profile, string(c.NATSToken), fs.Args())
	}
	fs = flag.NewFlagSet("tail", flag.ContinueOnError)
	fs.Duration("for", 0, "")
	_, err = Load(fs, []string{"-for", "20x", "--ranks", "3", "--profile=xml"}, "PROFILE")
	if err == nil || !strings.Contains(err.Error(), `"20x"`) || !strings.Contains(err.Error(), "--ranks: no such flag") || !strings.Contains(err.Error(), `--profile="xml"`) {
		t.Errorf("got %v", err)
	}
	t.Setenv("KVRELAY_PROFILES", "x")
	if _, err = Load(flag.NewFlagSet("tail", flag.ContinueOnError), nil, "PROFILE"); err == nil {
		t.Error("an unknown variable passed")
	}
}

// secretFile is a file with that content.
func secretFile(t *testing.T, content string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// Settings come from other hands: no text may bring the process down, and what is read must read the same again.
func FuzzLoad(f *testing.F) {
	f.Add("tcp://[::1]:5557,tcp://h:1", "none", "64MiB", "{worker_id}.{dp_rank}", "nats://u:p@h")
	f.Add("listen:tcp://*:5557", "tcp://h:65535", "1", "a.{", "x,,y")
	f.Fuzz(func(t *testing.T, endpoints, replay, size, subject, url string) {
		clean(t)
		args := []string{"--endpoints=" + endpoints, "--replay-endpoints=" + replay, "--hold-bytes=" + size, "--subject=" + subject, "--nats-url=" + url}
		fuzzlimit.Run(t, len(strings.Join(args, "")), func() { _, _ = Load(nil, args) })
		c, err := Load(nil, []string{"--endpoints=" + endpoints, "--replay-endpoints=" + replay, "--hold-bytes=" + size, "--subject=" + subject, "--nats-url=" + url})
		if err != nil {
			var all Problems
			if !errors.As(err, &all) || len(all) == 0 {
				t.Fatalf("%v is no Problems", err)
			}
			_ = err.Error()
			return
		}
		again, err := Load(nil, []string{"--endpoints=" + c.Endpoints.String(), "--replay-endpoints=" + c.ReplayEndpoints.String(), "--hold-bytes=" + c.HoldBytes.String(), "--subject=" + c.Subject})
		if err != nil {
			t.Fatalf("read once and not twice: %v", err)
		}
		want := c.Ranks
		if !c.IsStatic() { // nothing but blanks is no endpoint
			want = 0
		}
		if len(c.Sources()) != want || len(again.Sources()) != len(c.Sources()) {
			t.Fatalf("%d ranks, sources %v, again %v", c.Ranks, c.Sources(), again.Sources())
		}
		for i, s := range c.Sources() {
			if again.Sources()[i] != s {
				t.Fatalf("source %v became %v", s, again.Sources()[i])
			}
		}
	})
}
