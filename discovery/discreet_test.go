package discovery

import (
	"strings"
	"testing"
)

// What was shown to a peer does not come back from it, wherever it puts it.
func TestDiscreet(t *testing.T) {
	const token = "a-token-of-ours"
	o := &Options{Token: token}
	for name, a := range map[string]answer{
		"version":  {version: "1.2 " + token},
		"instance": {instance: token},
		"role":     {role: token},
		"endpoint": {list: []advertised{{endpoint: "tcp://" + token + ":1"}}},
		"replay":   {list: []advertised{{}, {replay: token}}},
		"topic":    {list: []advertised{{topic: token}}},
		"warning":  {warnings: []string{"x", token}},
		"partial":  {partial: "because: " + token},
	} {
		got, err := o.discreet(&a, nil)
		if got != nil || err == nil || strings.Contains(err.Error(), token) || !strings.Contains(err.Error(), "DISCOVERY_TOKEN") {
			t.Errorf("%s: %v, %v", name, got, err)
		}
	}
	honest := &answer{version: "1.2", list: []advertised{{endpoint: "tcp://h:1"}}}
	if got, err := o.discreet(honest, nil); got != honest || err != nil {
		t.Errorf("%v, %v", got, err)
	}
	_, err := o.discreet(nil, failf(notReady, "503 %s!", token))
	if f := asFailure(err); f.class != notReady || f.text != "503 [DISCOVERY_TOKEN]!" {
		t.Errorf("%+v", f)
	}
	// What is too short for a secret is part of words.
	o.Token = "vllm"
	if got, err := o.discreet(&answer{kind: "vllm"}, nil); got == nil || err != nil {
		t.Errorf("%v, %v", got, err)
	}
	o.Token = ""
	if got, err := o.discreet(&answer{kind: "vllm"}, nil); got == nil || err != nil {
		t.Errorf("%v, %v", got, err)
	}
}
