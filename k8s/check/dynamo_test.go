package check

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// withWorker builds what a user with a Dynamo worker in the pod has: the component
// dynamo without dynamo-register-worker.
func withWorker(t *testing.T) *objects {
	t.Helper()
	k8s, err := filepath.Abs("..")
	if err != nil {
		t.Fatal(err)
	}
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	up, err := filepath.Rel(dir, k8s)
	if err != nil {
		t.Fatal(err)
	}
	text := fmt.Sprintf("apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\nnamespace: x\nresources: [%s/overlays/vllm]\ncomponents: [%s/components/dynamo]\n", up, up)
	if err := os.WriteFile(filepath.Join(dir, "kustomization.yaml"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return build(t, dir)
}

// calls are the verbs of Kubernetes' API that package kube uses, read off its source.
func calls(t *testing.T) []string {
	t.Helper()
	verbs := map[string]string{
		"Get": "get", "List": "list", "Watch": "watch", "Patch": "patch", "Apply": "patch", "ApplyStatus": "patch",
		"Create": "create", "Update": "update", "UpdateStatus": "update", "Delete": "delete", "DeleteCollection": "deletecollection",
	}
	files, err := filepath.Glob(filepath.Join("..", "..", "membership", "kube", "*.go"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no source: %v", err)
	}
	var out []string
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(parsed, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok {
				return true
			}
			method, ok := call.Fun.(*ast.SelectorExpr)
			if !ok {
				return true
			}
			on, ok := method.X.(*ast.SelectorExpr)
			if ok && on.Sel.Name == "api" {
				verb := verbs[method.Sel.Name]
				if verb == "" {
					t.Errorf("%s: what verb is %s?", file, method.Sel.Name)
				}
				if !slices.Contains(out, verb) {
					out = append(out, verb)
				}
			}
			return true
		})
	}
	return out
}

// TestRBAC: the Role grants what the code calls, to the account that the pod
// has, and nothing else; create only where kvrelay registers the worker.
func TestRBAC(t *testing.T) {
	called := calls(t)
	for name, c := range map[string]struct {
		all    *objects
		create bool
	}{"overlays/dynamo": {build(t, "overlays/dynamo"), true}, "components/dynamo": {withWorker(t), false}} {
		t.Run(name, func(t *testing.T) {
			all, d := c.all, c.all.deployments[0]
			if len(all.roles) != 1 || len(all.bindings) != 1 || len(all.accounts) != 1 {
				t.Fatalf("%d roles, %d bindings, %d accounts", len(all.roles), len(all.bindings), len(all.accounts))
			}
			role, b, account := all.roles[0], all.bindings[0], all.accounts[0]
			if len(role.Rules) != 1 || !slices.Equal(role.Rules[0].APIGroups, []string{"nvidia.com"}) || !slices.Equal(role.Rules[0].Resources, []string{"dynamoworkermetadatas"}) {
				t.Fatalf("rules %+v", role.Rules)
			}
			want := slices.DeleteFunc(slices.Clone(called), func(v string) bool { return v == "create" && !c.create })
			got := slices.Clone(role.Rules[0].Verbs)
			slices.Sort(want)
			slices.Sort(got)
			if !slices.Equal(got, want) {
				t.Errorf("the Role grants %q, the code calls %q", got, want)
			}
			if (env(sidecar(t, d), "KVRELAY_REGISTER_WORKER") == "true") != c.create {
				t.Error("create is granted where kvrelay does not register the worker, or the other way round")
			}
			if b.RoleRef.Kind != "Role" || b.RoleRef.Name != role.Name || len(b.Subjects) != 1 || b.Subjects[0].Kind != "ServiceAccount" ||
				b.Subjects[0].Name != account.Name || b.Subjects[0].Namespace != account.Namespace || account.Namespace == "" {
				t.Errorf("the binding ties %+v to %+v", b.RoleRef, b.Subjects)
			}
			if role.Namespace != d.Namespace || b.Namespace != d.Namespace || account.Namespace != d.Namespace {
				t.Error("they are in several namespaces")
			}
			if d.Spec.Template.Spec.ServiceAccountName != account.Name {
				t.Errorf("the pod runs as %q", d.Spec.Template.Spec.ServiceAccountName)
			}
		})
	}
}

// TestToken: kvrelay's container has the token where clients look for it, and no
// other container has one.
func TestToken(t *testing.T) {
	all := build(t, "overlays/dynamo")
	spec := &all.deployments[0].Spec.Template.Spec
	if a := all.accounts[0].AutomountServiceAccountToken; a == nil || *a {
		t.Error("the account's token goes into every container")
	}
	tokens := map[string]bool{}
	for _, v := range spec.Volumes {
		if v.Projected == nil {
			continue
		}
		var paths []string
		for _, s := range v.Projected.Sources {
			switch {
			case s.ServiceAccountToken != nil:
				tokens[v.Name] = true
				paths = append(paths, s.ServiceAccountToken.Path)
			case s.ConfigMap != nil:
				paths = append(paths, s.ConfigMap.Items[0].Path)
			case s.DownwardAPI != nil:
				paths = append(paths, s.DownwardAPI.Items[0].Path)
			}
		}
		if slices.Sort(paths); !slices.Equal(paths, []string{"ca.crt", "namespace", "token"}) {
			t.Errorf("volume %s has %q", v.Name, paths)
		}
	}
	if len(tokens) != 1 {
		t.Fatalf("volumes with a token: %v", tokens)
	}
	for _, c := range containers(all.deployments[0]) {
		i := slices.IndexFunc(c.VolumeMounts, func(m corev1.VolumeMount) bool { return tokens[m.Name] })
		if (i >= 0) != (c.Name == "kvrelay") {
			t.Errorf("container %s: its token is at %d", c.Name, i)
		} else if i >= 0 && (c.VolumeMounts[i].MountPath != "/var/run/secrets/kubernetes.io/serviceaccount" || !c.VolumeMounts[i].ReadOnly) {
			t.Errorf("the token is at %+v", c.VolumeMounts[i])
		}
	}
}

// TestDynamoPod: what routers look for.
func TestDynamoPod(t *testing.T) {
	all := build(t, "overlays/dynamo")
	d := all.deployments[0]
	for label, value := range map[string]string{"nvidia.com/dynamo-discovery-backend": "kubernetes", "nvidia.com/dynamo-discovery-enabled": "true"} {
		if d.Spec.Template.Labels[label] != value {
			t.Errorf("the pods have %s: %q", label, d.Spec.Template.Labels[label])
		}
		if all.services[0].Labels[label] != value {
			t.Errorf("the Service, and so its EndpointSlices, have %s: %q", label, all.services[0].Labels[label])
		}
	}
	if _, set := d.Spec.Selector.MatchLabels["nvidia.com/dynamo-discovery-enabled"]; set {
		t.Error("Dynamo's labels are in the selector, which cannot be changed later")
	}
	if env(sidecar(t, d), "KVRELAY_MEMBERSHIP") != "kubernetes" {
		t.Error("kvrelay is not on record")
	}
}

// TestDynamoPolicy: routers, and only they, reach the recovery port; kvrelay
// reaches them on any port, and the API server.
func TestDynamoPolicy(t *testing.T) {
	all := build(t, "overlays/dynamo")
	frontend, other := labels.Set{"nvidia.com/dynamo-component-type": "frontend"}, labels.Set{"app": "other"}
	asked := false
	for _, rule := range all.policies[0].Spec.Ingress {
		for _, p := range rule.Ports {
			if *p.Port != intstr.FromInt32(9559) {
				continue
			}
			asked = true
			for _, from := range rule.From {
				if from.PodSelector == nil || from.NamespaceSelector != nil || !selector(t, from.PodSelector).Matches(frontend) || selector(t, from.PodSelector).Matches(other) {
					t.Errorf("the recovery port is open to %+v", from)
				}
			}
		}
	}
	answers, server := false, map[int]bool{}
	for _, rule := range all.policies[0].Spec.Egress {
		for _, to := range rule.To {
			if to.PodSelector != nil && to.NamespaceSelector == nil && len(rule.Ports) == 0 {
				answers = answers || selector(t, to.PodSelector).Matches(frontend) && !selector(t, to.PodSelector).Matches(other)
			}
			for _, p := range rule.Ports {
				if to.IPBlock != nil {
					server[p.Port.IntValue()] = true
				}
			}
		}
	}
	if !asked || !answers || !server[443] || !server[6443] {
		t.Errorf("routers reach kvrelay: %v; it reaches them: %v; and the API server: %v", asked, answers, server)
	}
}
