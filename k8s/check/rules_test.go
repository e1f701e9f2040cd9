package check

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"
)

const mib = 1 << 20

// sidecar is kvrelay's container in a pod.
func sidecar(t *testing.T, d *appsv1.Deployment) *corev1.Container {
	t.Helper()
	for i := range d.Spec.Template.Spec.InitContainers {
		if c := &d.Spec.Template.Spec.InitContainers[i]; c.Name == "kvrelay" {
			return c
		}
	}
	t.Fatalf("%s has no kvrelay", d.Name)
	return nil
}

func containers(d *appsv1.Deployment) []corev1.Container {
	return slices.Concat(d.Spec.Template.Spec.InitContainers, d.Spec.Template.Spec.Containers)
}

func env(c *corev1.Container, name string) string {
	for _, e := range c.Env {
		if e.Name == name {
			return e.Value
		}
	}
	return ""
}

// TestSidecar: the manners of a sidecar, in every overlay.
func TestSidecar(t *testing.T) {
	for _, dir := range engines {
		t.Run(dir, func(t *testing.T) {
			d := build(t, dir).deployments[0]
			c := sidecar(t, d)
			if c.RestartPolicy == nil || *c.RestartPolicy != corev1.ContainerRestartPolicyAlways {
				t.Error("restartPolicy is not Always: the pod would wait for kvrelay to end")
			}
			if c.ReadinessProbe != nil {
				t.Error("a readinessProbe: an outage of NATS would take the engine out of service")
			}
			for what, p := range map[string]*corev1.Probe{"startup": c.StartupProbe, "liveness": c.LivenessProbe} {
				if p == nil || p.HTTPGet == nil || p.HTTPGet.Path != "/healthz" {
					t.Errorf("the %s probe does not ask /healthz, which depends on no peer", what)
				}
			}
			if env(c, "KVRELAY_CLEAR_ON_EXIT") != "true" {
				t.Error("routers would keep the blocks of pods that are no more")
			}
			if _, limited := c.Resources.Limits[corev1.ResourceCPU]; limited {
				t.Error("a CPU limit makes the engine drop events")
			}
			if *d.Spec.Template.Spec.TerminationGracePeriodSeconds < 30 {
				t.Error("too little time for the engine and then kvrelay to end")
			}
			hardened(t, c)
		})
	}
}

// hardened: what a container without files, users or privileges can do without.
func hardened(t *testing.T, c *corev1.Container) {
	t.Helper()
	s := c.SecurityContext
	switch {
	case s == nil:
		t.Fatalf("%s has no securityContext", c.Name)
	case s.RunAsNonRoot == nil || !*s.RunAsNonRoot || s.RunAsUser == nil || *s.RunAsUser == 0:
		t.Errorf("%s may be root", c.Name)
	case s.ReadOnlyRootFilesystem == nil || !*s.ReadOnlyRootFilesystem:
		t.Errorf("%s may write to its image", c.Name)
	case s.AllowPrivilegeEscalation == nil || *s.AllowPrivilegeEscalation:
		t.Errorf("%s may gain privileges", c.Name)
	case s.Capabilities == nil || !slices.Equal(s.Capabilities.Drop, []corev1.Capability{"ALL"}) || len(s.Capabilities.Add) > 0:
		t.Errorf("%s has capabilities", c.Name)
	case s.SeccompProfile == nil || s.SeccompProfile.Type != corev1.SeccompProfileTypeRuntimeDefault:
		t.Errorf("%s has no seccomp profile", c.Name)
	}
}

// TestMemory: the limit is what the formula of docs/capacity.md gives for half a
// million blocks a rank, with some to spare, and Go knows of it.
func TestMemory(t *testing.T) {
	for _, dir := range engines {
		t.Run(dir, func(t *testing.T) {
			c := sidecar(t, build(t, dir).deployments[0])
			ranks := int64(1)
			if r := env(c, "KVRELAY_RANKS"); r != "" {
				n, err := strconv.Atoi(r)
				if err != nil {
					t.Fatal(err)
				}
				ranks = int64(n)
			}
			formula := (32+64+64+16*ranks)*mib + ranks*500_000*60
			limit := c.Resources.Limits.Memory().Value()
			if limit < formula*5/4 || limit > formula*2 {
				t.Errorf("the limit is %d MiB, the formula gives %d", limit/mib, formula/mib)
			}
			if request := c.Resources.Requests.Memory().Value(); request <= 0 || request > limit {
				t.Errorf("%d MiB requested", request/mib)
			}
			soft, err := strconv.ParseInt(strings.TrimSuffix(env(c, "GOMEMLIMIT"), "MiB"), 10, 64)
			if soft *= mib; err != nil || soft < limit*85/100 || soft > limit*95/100 {
				t.Errorf("GOMEMLIMIT is %s: about nine tenths of the limit, %d MiB, are wanted", env(c, "GOMEMLIMIT"), limit/mib)
			}
		})
	}
}

// TestSettings: kvrelay itself accepts the settings.
func TestSettings(t *testing.T) {
	binary := filepath.Join(t.TempDir(), "kvrelay")
	cmd := exec.Command("go", "build", "-trimpath", "-o", binary, "./cmd/kvrelay")
	cmd.Dir = filepath.Join("..", "..")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0") // as a release is built
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("building kvrelay: %v\n%s", err, out)
	}
	for _, dir := range engines {
		c := sidecar(t, build(t, dir).deployments[0])
		cmd := exec.Command(binary, "config")
		cmd.Env = []string{}
		for _, e := range c.Env {
			cmd.Env = append(cmd.Env, e.Name+"="+known(t, e))
		}
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("k8s/%s: %v\n%s", dir, err, out)
		}
		for port, setting := range map[string]string{"kvrelay-admin": "KVRELAY_ADMIN_ADDR", "kvrelay-recover": "KVRELAY_RECOVERY_ADDR"} {
			if i := slices.IndexFunc(c.Ports, func(p corev1.ContainerPort) bool { return p.Name == port }); i >= 0 && env(c, setting) != ":"+strconv.Itoa(int(c.Ports[i].ContainerPort)) {
				t.Errorf("k8s/%s: port %s is %d, and kvrelay listens on %q", dir, port, c.Ports[i].ContainerPort, env(c, setting))
			}
		}
	}
}

// known is the value of a variable, as some pod would have it.
func known(t *testing.T, e corev1.EnvVar) string {
	t.Helper()
	if e.ValueFrom == nil {
		return e.Value
	}
	if e.ValueFrom.FieldRef == nil {
		t.Fatalf("%s comes from neither a value nor the downward API", e.Name)
	}
	value, ok := map[string]string{"metadata.name": "engine-0", "metadata.namespace": "ns", "metadata.uid": "5d0c-1"}[e.ValueFrom.FieldRef.FieldPath]
	if !ok {
		t.Fatalf("%s: no such field of a pod: %s", e.Name, e.ValueFrom.FieldRef.FieldPath)
	}
	return value
}

// TestReferences: every name in a manifest is one of something.
func TestReferences(t *testing.T) {
	for _, dir := range append([]string{"nats"}, engines...) {
		t.Run(dir, func(t *testing.T) {
			all := build(t, dir)
			for _, d := range all.deployments {
				spec := &d.Spec.Template.Spec
				if selector(t, d.Spec.Selector).Empty() || !selector(t, d.Spec.Selector).Matches(labels.Set(d.Spec.Template.Labels)) {
					t.Errorf("%s does not select its own pods", d.Name)
				}
				if spec.AutomountServiceAccountToken == nil || *spec.AutomountServiceAccountToken {
					t.Errorf("%s has a token for the Kubernetes API", d.Name)
				}
				volumes, ports, numbers := map[string]bool{}, map[string]bool{}, map[int32]bool{}
				for _, v := range spec.Volumes {
					volumes[v.Name] = true
					if v.ConfigMap != nil && !slices.ContainsFunc(all.configMaps, func(m *corev1.ConfigMap) bool { return m.Name == v.ConfigMap.Name }) {
						t.Errorf("there is no ConfigMap %s", v.ConfigMap.Name)
					}
				}
				for _, c := range containers(d) {
					if tag := c.Image[strings.LastIndex(c.Image, ":")+1:]; tag == c.Image || tag == "latest" || tag == "" {
						t.Errorf("image %q names no version", c.Image)
					}
					for _, p := range c.Ports {
						if ports[p.Name] {
							t.Errorf("port %s is there twice", p.Name)
						}
						ports[p.Name], numbers[p.ContainerPort] = true, true
					}
				}
				for _, c := range containers(d) {
					seen := map[string]bool{}
					for _, e := range c.Env {
						if seen[e.Name] {
							t.Errorf("%s is set twice", e.Name)
						}
						seen[e.Name] = true
					}
					for _, m := range c.VolumeMounts {
						if !volumes[m.Name] {
							t.Errorf("there is no volume %s", m.Name)
						}
					}
					for _, p := range []*corev1.Probe{c.StartupProbe, c.LivenessProbe, c.ReadinessProbe} {
						if p != nil && !ports[p.HTTPGet.Port.StrVal] {
							t.Errorf("%s: a probe of port %s, which is not there", c.Name, p.HTTPGet.Port.String())
						}
					}
				}
				for _, m := range all.podMonitors {
					if !selector(t, &m.Spec.Selector).Matches(labels.Set(d.Spec.Template.Labels)) {
						t.Errorf("PodMonitor %s does not see %s", m.Name, d.Name)
					}
					for _, e := range m.Spec.PodMetricsEndpoints {
						if e.Port == nil || !ports[*e.Port] {
							t.Errorf("PodMonitor %s: its port is not there", m.Name)
						}
					}
				}
				for _, s := range all.services {
					if !labels.SelectorFromSet(s.Spec.Selector).Matches(labels.Set(d.Spec.Template.Labels)) || !ports[s.Spec.Ports[0].TargetPort.StrVal] && !numbers[s.Spec.Ports[0].TargetPort.IntVal] {
						t.Errorf("Service %s does not lead to %s", s.Name, d.Name)
					}
				}
			}
		})
	}
}

// TestPolicy: the engine's event ports are open to nobody, NATS can be reached,
// and overlays in one namespace keep off each other's pods.
func TestPolicy(t *testing.T) {
	nats := build(t, "nats").deployments[0]
	hardened(t, &nats.Spec.Template.Spec.Containers[0])
	deployments := map[string]*appsv1.Deployment{}
	for _, dir := range engines {
		all := build(t, dir)
		d, p := all.deployments[0], all.policies[0]
		if !selector(t, &p.Spec.PodSelector).Matches(labels.Set(d.Spec.Template.Labels)) {
			t.Errorf("k8s/%s: the policy is not about its pods", dir)
		}
		if len(p.Spec.PolicyTypes) != 2 {
			t.Errorf("k8s/%s: the policy leaves a direction open", dir)
		}
		for _, rule := range p.Spec.Ingress {
			if len(rule.Ports) == 0 || len(rule.From) == 0 {
				t.Errorf("k8s/%s: a rule lets everything in", dir)
			}
			for _, port := range rule.Ports {
				recovery := *port.Port == intstr.FromInt32(9559) && len(all.roles) > 0 // TestDynamoPolicy says for whom
				if *port.Port != intstr.FromInt32(9558) && *port.Port != intstr.FromString("engine-api") && !recovery {
					t.Errorf("k8s/%s: port %s is open", dir, port.Port.String())
				}
			}
		}
		reaches := false
		for _, rule := range p.Spec.Egress {
			for _, to := range rule.To {
				if to.PodSelector != nil && to.NamespaceSelector == nil && selector(t, to.PodSelector).Matches(labels.Set(nats.Spec.Template.Labels)) {
					reaches = reaches || rule.Ports[0].Port.IntValue() == int(nats.Spec.Template.Spec.Containers[0].Ports[0].ContainerPort)
				}
			}
		}
		if !reaches {
			t.Errorf("k8s/%s: kvrelay may not reach NATS", dir)
		}
		deployments[dir] = d
	}
	for a, da := range deployments {
		for b, db := range deployments {
			// The monitored overlay is the plain one with more.
			if a != b && da.Name != db.Name && selector(t, da.Spec.Selector).Matches(labels.Set(db.Spec.Template.Labels)) {
				t.Errorf("k8s/%s takes the pods of k8s/%s for its own", a, b)
			}
		}
	}
}

func selector(t *testing.T, s *metav1.LabelSelector) labels.Selector {
	t.Helper()
	made, err := metav1.LabelSelectorAsSelector(s)
	if err != nil {
		t.Fatal(err)
	}
	return made
}

// TestImage: the Dockerfile makes what the manifests expect, with the Go
// version of go.mod.
func TestImage(t *testing.T) {
	text, err := os.ReadFile(filepath.Join("..", "..", "Dockerfile"))
	if err != nil {
		t.Fatal(err)
	}
	mod, err := os.ReadFile(filepath.Join("..", "..", "go.mod"))
	if err != nil {
		t.Fatal(err)
	}
	_, version, _ := strings.Cut(string(mod), "\ngo ")
	version, _, _ = strings.Cut(version, "\n")
	major := strings.Join(strings.Split(version, ".")[:2], ".")
	user := strconv.FormatInt(*sidecar(t, build(t, "overlays/vllm").deployments[0]).SecurityContext.RunAsUser, 10)
	for _, want := range []string{"golang:" + major, "\nFROM scratch\n", "\nUSER " + user + ":" + user + "\n", "\nENTRYPOINT [\"/kvrelay\"]\n", " -tags grpcnotrace -trimpath "} {
		if !strings.Contains(string(text), want) {
			t.Errorf("the Dockerfile has no %q", want)
		}
	}
}
