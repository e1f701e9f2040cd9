package main

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/nats-io/nats-server/v2/server"
)

// A refused login is told as one, with the setting that it came from.
func TestRefusedLogin(t *testing.T) {
	s, err := server.NewServer(&server.Options{Host: "127.0.0.1", Port: server.RANDOM_PORT, Username: "u", Password: "right", NoLog: true, NoSigs: true})
	if err != nil {
		t.Fatal(err)
	}
	s.Start()
	defer func() { s.Shutdown(); s.WaitForShutdown() }()
	in := strings.Replace(s.ClientURL(), "://", "://u:hunter2@", 1)
	for _, command := range []string{"tail", "query --prompt-tokens=1", "bench --for=1s"} {
		for args, say := range map[string]string{
			"--nats-url=" + in: "refuses the user or password in NATS_URL (nats: Authorization Violation): check KVRELAY_NATS_URL",
			"--nats-token=hunter2 --nats-url=" + s.ClientURL(): "refuses the token (nats: Authorization Violation): check KVRELAY_NATS_TOKEN",
			"--nats-url=" + s.ClientURL():                      "refuses a client without credentials",
		} {
			code, _, errs := run(t, append(strings.Fields(command), strings.Fields(args)...)...)
			if code != exitFailed || !strings.Contains(errs, say) || strings.Contains(errs, "cannot be reached") || strings.Contains(errs, "hunter2") {
				t.Errorf("%s %s: code %d, %s", command, args, code, errs)
			}
		}
	}
}

// No command shows a piece of a secret that was mistyped, wherever it stands.
func TestSecretsInArguments(t *testing.T) {
	for _, args := range []string{
		"config --nats-url nats://u:S3CR3T,y@h:1", "config --json --nats-url=nats://u:S3CR3T", "run --nats-url nats://u:S3CR3T,y@h:1",
		"run --nats-url nats://h:1?token=S3CR3T", "run --discovery-url http://h:1?token=S3CR3T", "run --nats-pasword -S3CR3T",
		"run --clear-on-exit S3CR3T", "config --json S3CR3T", "tail --nats-url nats://u:S3CR3T/y@h", "tail --nats-pasword -S3CR3T",
		"query --nats-tokn --S3CR3T", "mock -S3CR3T", "decode --=S3CR3T", "nats://u:S3CR3T@h:1", "-S3CR3T", "--nats-url nats://u:S3CR3T@h:1,",
		"record tcp://u:S3CR3T@h:1 x", "record u:S3CR3T@h:1 x", "record tcp://h:1 x --replay S3CR3T@h:1", "run --endpoints u:S3CR3T@h:1",
	} {
		code, out, errs := run(t, strings.Fields(args)...)
		if code != exitUsage || errs == "" || strings.Contains(out+errs, "S3CR3T") {
			t.Errorf("%s: code %d, stdout %q, stderr %q", args, code, out, errs)
		}
	}
}

// A default that another program's variable gives is told as such.
func TestConfigTellsForeignDefaults(t *testing.T) {
	t.Setenv("ETCD_ENDPOINTS", "http://etcd:2379")
	t.Setenv("POD_NAME", "p-0")
	t.Setenv("DYN_FILE_KV", "/var/kv")
	_, out, _ := run(t, "config", "--json", "--pod-name=flag")
	var values []struct{ Name, Value, From string }
	if err := json.Unmarshal([]byte(out), &values); err != nil {
		t.Fatal(err)
	}
	want := map[string]string{"ETCD_ENDPOINTS": "$ETCD_ENDPOINTS", "MEMBERSHIP_PATH": "$DYN_FILE_KV", "POD_NAME": "flag", "POD_UID": "default", "SINK": "default"}
	for _, v := range values {
		if from, ok := want[v.Name]; ok && v.From != from {
			t.Errorf("%s=%q is from %q, want %q", v.Name, v.Value, v.From, from)
		}
	}
}
