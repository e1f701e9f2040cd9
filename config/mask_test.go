package config

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/kvrelay/kvrelay/internal/fuzzlimit"
)

func TestMaskURLs(t *testing.T) {
	for text, want := range map[string]string{
		// Certain: shown.
		"":                                      "",
		"h":                                     "h",
		"nats://h:4222":                         "nats://h:4222",
		"nats://a:1, b:2,tls://[::1]:3":         "nats://a:1,b:2,tls://[::1]:3",
		"https://a:2379/,https://b:2379":        "https://a:2379/,https://b:2379",
		"nats://h:99999":                        "nats://h:99999",
		"natz://h:1":                            "natz://h:1",
		"http://:1":                             "http://:1",
		"a,,b":                                  "a,,b",
		"nats://u:S3CR3T@h:1":                   "nats://****@h:1",
		"u:S3CR3T@h:1":                          "****@h:1",
		"nats://u:x@S3CR3T@h:1":                 "nats://****@h:1",
		"nats://u:S3CR3T,y@h:1":                 "nats://****@h:1",
		"nats://u:y,S3CR3T@h:1,b:2":             "nats://****@h:1,b:2",
		"nats://u:S3CR3T@a:1,nats://S3CR3T@b:2": "nats://****@b:2",
		// Forgotten hosts.
		"nats://u:S3CR3T":            "nats://u:****",
		"u:S3CR3T":                   "u:****",
		"nats://u:S3CR3T,S3CR3T":     "nats://u:****",
		"nats://a:1,nats://u:S3CR3T": "nats://a:1,nats://u:****",
		"nats://u:123456":            "nats://u:****",
		"nats://u%3AS3CR3T":          "nats://****",
		"nats://[S3CR3T":             "nats://****",
		"nats://u:S3CR3T@h:S3CR3T":   "nats://****@h:****",
		// What follows the port.
		"nats://h:1?token=S3CR3T":           "nats://h:1?****",
		"nats://h:1?token=S3C,R3T":          "nats://h:1?****",
		"nats://h:1?token=S3C@R3T":          "nats://****",
		"nats://h:4222/S3CR3T":              "nats://h:4222/****",
		"nats://h#S3CR3T":                   "nats://h#****",
		"nats://u:p@h:4222/S3CR3T":          "nats://****@h:4222/****",
		"nats://u:S3CR3T/y@h:1":             "nats://****",
		"nats://u:S3CR3T#y@h:1":             "nats://****",
		"S3CR3T://y@h:1":                    "****",
		"u:S3CR3T://y@h:1":                  "****",
		"S3CR3T://h":                        "****",
		"nats://" + strings.Repeat("s", 64): "nats://****",
	} {
		if got := maskURLs(text); got != want {
			t.Errorf("%q is shown as %q, want %q", text, got, want)
		}
	}
}

// shownBy is all that can be seen of settings that were given in this way.
func shownBy(t *testing.T, args []string) string {
	t.Helper()
	c, err := Load(nil, args)
	var b strings.Builder
	fmt.Fprintf(&b, "%v\n%+v %#v %v\n", err, c, *c, c.Masked())
	for _, v := range []any{c, c.Masked(), err} {
		j, jerr := json.Marshal(v)
		if jerr != nil {
			t.Fatal(jerr)
		}
		b.Write(j)
	}
	slog.New(slog.NewTextHandler(&b, nil)).Info("settings", "config", c, "url", c.NATSURL, "discovery", c.DiscoveryURL, "err", err)
	return b.String()
}

// A secret in an address is nowhere shown, however the address is mistyped.
func TestSecretsInAddresses(t *testing.T) {
	const secret = "S3CR3T"
	secrets := []string{secret}
	for i, odd := range []string{",", "/", "#", "?", "@", ":", " ", "%", "\\", "[", "]", "\"", "\n", "://", ",nats://", ",b:1"} {
		secrets = append(secrets, secret+odd+secret)
		if i < 5 {
			secrets = append(secrets, "12"+odd+secret+odd) // begins as a port does
		}
	}
	for _, shape := range []string{
		"nats://u:%s@h:1", "u:%s@h:1", "nats://%s@h:1", "nats://a:1,nats://u:%s@h:1", "nats://a:1,u:%s@h", "nats://u:%s@h,", "nats://u:%s@[h",
		"nats://u:%s@h:1,nats://u:%s@b:2", "nats://u:%s@h:x", "nats:/u:%s@h", "nats:u:%s@h", "nats//u:%s@h", "x://u:%s@h", " nats://u:%s@h ",
		"http://u:%s@h:1", "grpcs://%s@h:1/", "https://h:1?token=%s@h:1",
	} {
		for _, s := range secrets {
			url := strings.ReplaceAll(shape, "%s", s)
			for _, args := range [][]string{
				{"--nats-url", url}, {"--nats-url=" + url, "--nats-token=x"}, {"--discovery-url", url},
				{"--membership=etcd", "--etcd-endpoints", url}, {"--nats-ulr", url}, {"--clear-on-exit", url},
			} {
				clean(t)
				if got := shownBy(t, args); strings.Contains(strings.ToUpper(got), secret) {
					t.Errorf("%q shows the secret: %s", args, strings.SplitN(got, "\n", 2)[0])
				}
			}
			clean(t, "NATS_URL="+url, "DISCOVERY_URL="+url)
			t.Setenv("ETCD_ENDPOINTS", url)
			if got := shownBy(t, nil); strings.Contains(strings.ToUpper(got), secret) {
				t.Errorf("%q shows the secret: %s", url, strings.SplitN(got, "\n", 2)[0])
			}
		}
	}
	for _, url := range []string{"nats://u:S3CR3T", "u:S3CR3T", "nats://h:1?token=S3CR3T", "nats://h:4222/S3CR3T", "nats://h:1,b:2/S3CR3T", "nats://u:S3CR3T,b:1"} {
		clean(t, "NATS_URL="+url, "DISCOVERY_URL="+url)
		if got := shownBy(t, []string{"--etcd-endpoints=" + url}); strings.Contains(got, secret) {
			t.Errorf("%q shows the secret: %s", url, strings.SplitN(got, "\n", 2)[0])
		}
	}
}

// An address with a login in the place of any other setting is masked, too.
func TestLoginInAnySetting(t *testing.T) {
	told := func(args ...string) string { // as kvrelay config tells it
		c, err := Load(nil, args)
		return fmt.Sprint(err, c.Masked())
	}
	for _, s := range Table() {
		for _, url := range []string{"nats://u:S3CR3T@h:4222", " tls://S3CR3T@h", "tcp://h:1,nats://u:S3CR3T@h:1", "x://u:S3C/R3T@h"} {
			clean(t)
			t.Setenv(s.Var, url)
			for _, args := range [][]string{nil, {"--" + s.Flag + "=" + url}} {
				if got := told(args...); strings.Contains(got, "S3C") {
					t.Errorf("%s=%q shows the secret: %s", s.Var, url, strings.SplitN(got, "\n", 2)[0])
				}
			}
		}
	}
	clean(t, "ENDPOINTS=ipc://@a,ipc://@b")
	if got := told(); !strings.Contains(got, "ipc://@a,ipc://@b") {
		t.Errorf("what is no login is masked: %s", got)
	}
}

// An address takes no login; one that has one all the same is masked without a scheme, too.
func TestLoginInAddress(t *testing.T) {
	for _, name := range []string{"ENDPOINTS", "REPLAY_ENDPOINTS", "RECOVERY_ADDR", "ADMIN_ADDR"} {
		for _, text := range []string{"u:S3CR3T@h:1", "S3CR3T@h:1", "tcp://h:1,u:S3CR3T@h:1", "tcp:/u:S3CR3T@h:1", "listen:u:S3CR3T@h:1", "u:S3CR3T,S3CR3T@h:1"} {
			clean(t, name+"="+text)
			if c, err := Load(nil, nil); err == nil || strings.Contains(fmt.Sprint(err, c.Masked()), "S3CR3T") {
				t.Errorf("%s=%s: %v %v", name, text, err, c.Masked())
			}
		}
	}
	clean(t, "ENDPOINTS=ipc://@c,tcp://h:x")
	if _, err := Load(nil, nil); err == nil || !strings.Contains(err.Error(), "ipc://@c,tcp://h:x") {
		t.Errorf("what is no login is masked: %v", err)
	}
}

// What is no flag may be a piece of a secret: the flag before it is named.
func TestSecretsBehindFlags(t *testing.T) {
	for args, say := range map[string]string{
		"--nats-pasword -S3CR3T":                        "--nats-pasword: no such flag; did you mean --nats-password?",
		"--nats-pasword --S3CR3T":                       "--nats-pasword: no such flag; did you mean --nats-password?",
		"--nats-pasword S3CR3T":                         "--nats-pasword: no such flag; did you mean --nats-password?",
		"--nats-pasword=S3CR3T":                         "--nats-pasword: no such flag; did you mean --nats-password?",
		"--NATS_PASWORD=S3CR3T":                         "--NATS_PASWORD: no such flag; did you mean --nats-password?",
		"--nats-pasword ---S3CR3T":                      "did you mean --nats-password?",
		"--clear-on-exit S3CR3T":                        "behind --clear-on-exit: ",
		"--clear-on-exit -S3CR3T":                       "behind --clear-on-exit: ",
		"--topic x --S3CR3T=y":                          "behind --topic: ",
		"--topic x ---S3CR3T":                           "behind --topic: want flags as --name=value",
		"--topic x --=S3CR3T":                           "behind --topic: want flags as --name=value",
		"--nats-url=h --nats-user=u --topic=x S3CR3T y": "behind --topic: ",
		"S3CR3T":              "arguments: ",
		"nats://u:S3CR3T@h:1": "arguments: ",
		"-S3CR3T":             "arguments: ",
		"--=S3CR3T":           "arguments: ",
		"--topic x --lozt=z":  "--lozt: no such flag; did you mean --lost?",
		"--bogus":             "--bogus: no such flag",
		"run":                 `argument="run": `,
		"--bogus x --ranks=0": `--ranks="0"`,
		"--bogus --rank x":    "--rank: no such flag; did you mean --ranks?",
	} {
		clean(t)
		got := strings.Join(problems(t, strings.Fields(args)...), "\n")
		if !strings.Contains(got, say) || strings.Contains(got, "S3CR3T") {
			t.Errorf("%s: %q, want %q", args, got, say)
		}
	}
}

// FuzzMask: nothing before the last @ is shown, and nothing behind it but hosts.
func FuzzMask(f *testing.F) {
	f.Add("nats://u:", ",y", "h:1")
	f.Add("nats://a:1,nats://u:x@", "", "h:1,b:2")
	f.Add("", "://", "h/x")
	f.Fuzz(func(t *testing.T, before, behind, host string) {
		const secret = "S3CR3T"
		if strings.Contains(host+before+behind, secret) {
			return
		}
		url := before + secret + behind + "@" + host
		fuzzlimit.Run(t, len(url), func() { _ = maskURLs(url) })
		if got := maskURLs(url); strings.Contains(got, secret) {
			t.Errorf("%q is shown as %q", url, got)
		}
		if got := maskURLs(maskURLs(url)); strings.Contains(got, secret) {
			t.Errorf("%q is shown as %q", url, got)
		}
		if _, err := Load(nil, []string{"--nats-url=" + url}); err != nil && strings.Contains(err.Error(), secret) {
			t.Errorf("%q: %v", url, err)
		}
	})
}
