package check

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	monitoringv1 "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"sigs.k8s.io/json"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"
	"sigs.k8s.io/yaml"
)

// objects is what one folder becomes.
type objects struct {
	deployments []*appsv1.Deployment
	services    []*corev1.Service
	configMaps  []*corev1.ConfigMap
	policies    []*networkingv1.NetworkPolicy
	podMonitors []*monitoringv1.PodMonitor
	accounts    []*corev1.ServiceAccount
	roles       []*rbacv1.Role
	bindings    []*rbacv1.RoleBinding
}

// build does what `kustomize build` does: krusty is what that command consists of.
func build(t *testing.T, dir string) *objects {
	t.Helper()
	path := dir
	if !filepath.IsAbs(dir) {
		path = filepath.Join("..", dir)
	}
	made, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(filesys.MakeFsOnDisk(), path)
	if err != nil {
		t.Fatalf("kustomize build k8s/%s: %v", dir, err)
	}
	all := &objects{}
	for _, r := range made.Resources() {
		text, err := r.AsYAML()
		if err != nil {
			t.Fatal(err)
		}
		if err := all.add(text); err != nil {
			t.Fatalf("k8s/%s: %s %s: %v", dir, r.GetKind(), r.GetName(), err)
		}
	}
	return all
}

// add decodes one manifest into the type that it names.
func (o *objects) add(text []byte) error {
	var kind struct {
		APIVersion string `json:"apiVersion"`
		Kind       string `json:"kind"`
	}
	if err := yaml.Unmarshal(text, &kind); err != nil {
		return err
	}
	switch kind.APIVersion + " " + kind.Kind {
	case "apps/v1 Deployment":
		return decode(text, &o.deployments)
	case "v1 Service":
		return decode(text, &o.services)
	case "v1 ConfigMap":
		return decode(text, &o.configMaps)
	case "networking.k8s.io/v1 NetworkPolicy":
		return decode(text, &o.policies)
	case "monitoring.coreos.com/v1 PodMonitor":
		return decode(text, &o.podMonitors)
	case "v1 ServiceAccount":
		return decode(text, &o.accounts)
	case "rbac.authorization.k8s.io/v1 Role":
		return decode(text, &o.roles)
	case "rbac.authorization.k8s.io/v1 RoleBinding":
		return decode(text, &o.bindings)
	}
	return fmt.Errorf("%s %s has no check", kind.APIVersion, kind.Kind)
}

// decode is strict: an unknown field, one in another case, one that is there
// twice or one of another type is an error.
func decode[T any](text []byte, list *[]*T) error {
	asJSON, err := yaml.YAMLToJSONStrict(text)
	if err != nil {
		return err
	}
	object := new(T)
	strict, err := json.UnmarshalStrict(asJSON, object)
	if err != nil {
		return err
	}
	if len(strict) > 0 {
		return fmt.Errorf("%v", strict)
	}
	*list = append(*list, object)
	return nil
}

// engines are the folders with an engine and kvrelay beside it.
var engines = []string{"overlays/vllm", "overlays/sglang", "overlays/data-parallel", "overlays/vllm-monitored", "overlays/dynamo"}

// TestEveryFolderIsChecked: a folder with a kustomization is built here, by
// itself or as a part of one that is.
func TestEveryFolderIsChecked(t *testing.T) {
	known := map[string]bool{
		"base": true, "nats": true, "components/podmonitor": true, "components/nats-credentials": true,
		"components/dynamo": true, "components/dynamo-register-worker": true,
	}
	for _, dir := range engines {
		known[dir] = true
	}
	for _, pattern := range []string{"*", "*/*"} {
		found, err := filepath.Glob(filepath.Join("..", pattern, "kustomization.yaml"))
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range found {
			if dir, _ := filepath.Rel("..", filepath.Dir(file)); !known[dir] {
				t.Errorf("k8s/%s is in no test", dir)
			}
			delete(known, filepath.ToSlash(strings.TrimPrefix(filepath.Dir(file), "../")))
		}
	}
	for dir := range known {
		t.Errorf("k8s/%s has no kustomization.yaml", dir)
	}
}

// TestFieldsAreExplained: whoever reads a manifest finds the reasons there.
func TestFieldsAreExplained(t *testing.T) {
	for _, file := range []string{"base/deployment.yaml", "base/networkpolicy.yaml", "overlays/data-parallel/engine.yaml", "nats/nats.conf",
		"components/dynamo/deployment.yaml", "components/dynamo/networkpolicy.yaml", "components/dynamo/rbac.yaml", "components/dynamo/service.yaml"} {
		text, err := os.ReadFile(filepath.Join("..", file))
		if err != nil {
			t.Fatal(err)
		}
		if !strings.HasPrefix(string(text), "#") && strings.Count(string(text), "# ") < 5 {
			t.Errorf("k8s/%s does not say what it is", file)
		}
	}
}

// TestDecodingIsStrict: the check can fail.
func TestDecodingIsStrict(t *testing.T) {
	const good = "apiVersion: v1\nkind: Service\nmetadata: {name: a}\nspec:\n  ports: [{port: 1, targetPort: x}]\n"
	if err := new(objects).add([]byte(good)); err != nil {
		t.Errorf("a good one: %v", err)
	}
	for what, bad := range map[string]string{
		"an unknown field":   good + "  portz: []\n",
		"another case":       strings.Replace(good, "targetPort", "targetport", 1),
		"a field twice":      good + "  ports: []\n",
		"another type":       strings.Replace(good, "port: 1", "port: one", 1),
		"an unknown kind":    strings.Replace(good, "Service", "Servise", 1),
		"an unknown version": strings.Replace(good, "v1", "v2", 1),
	} {
		if err := new(objects).add([]byte(bad)); err == nil {
			t.Errorf("%s passes", what)
		}
	}
}
