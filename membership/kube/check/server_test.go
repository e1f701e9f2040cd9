//go:build kube

package check

import (
	"io"
	"net"
	"net/url"
	"os"
	"strings"
	"testing"
	"time"

	"go.etcd.io/etcd/server/v3/embed"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset"
	"k8s.io/apiextensions-apiserver/test/integration/fixtures"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"
	"sigs.k8s.io/yaml"

	"github.com/kvrelay/kvrelay/membership/kube"
	"github.com/kvrelay/kvrelay/membership/kube/internal/suite"
)

// TestSuite: the promises, against the real API server.
func TestSuite(t *testing.T) {
	klog.LogToStderr(false)
	klog.SetOutput(io.Discard)
	suite.Run(t, apiServer(t), 25)
}

// apiServer starts the server with Dynamo's type.
func apiServer(t *testing.T) *rest.Config {
	t.Helper()
	t.Setenv("KUBE_INTEGRATION_ETCD_URL", etcd(t)) // where the fixture looks for it
	stop, config, _, err := fixtures.StartDefaultServer(t)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(stop)
	noType(t, config)
	text, err := os.ReadFile("crd.yaml")
	if err != nil {
		t.Fatal(err)
	}
	crd := &apiextensionsv1.CustomResourceDefinition{}
	if err := yaml.UnmarshalStrict(text, crd); err != nil {
		t.Fatal(err)
	}
	types, err := clientset.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	// The fixture's other way tries the type out with an object of its own, which
	// this type does not take.
	if _, err := fixtures.CreateNewV1CustomResourceDefinitionWatchUnsafe(crd, types); err != nil {
		t.Fatal(err)
	}
	return config
}

// noType: what a cluster without Dynamo answers is told as that.
func noType(t *testing.T, config *rest.Config) {
	t.Helper()
	s, err := kube.New(kube.Options{Config: config, Namespace: "n", Name: "w", Pod: "w", PodUID: "u"})
	if err != nil {
		t.Fatal(err)
	}
	err = s.Put(t.Context(), "v1/instances/n/c/e/1", []byte(`{}`))
	if err == nil || !strings.Contains(err.Error(), "CustomResourceDefinition") {
		t.Errorf("without the type: %v", err)
	}
}

// etcd starts one on free ports.
func etcd(t *testing.T) string {
	t.Helper()
	free := func() url.URL {
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer ln.Close()
		return url.URL{Scheme: "http", Host: ln.Addr().String()}
	}
	c := embed.NewConfig()
	c.Dir, c.LogLevel, c.Logger = t.TempDir(), "error", "zap"
	client, peer := free(), free()
	c.ListenClientUrls, c.AdvertiseClientUrls = []url.URL{client}, []url.URL{client}
	c.ListenPeerUrls, c.AdvertisePeerUrls = []url.URL{peer}, []url.URL{peer}
	c.InitialCluster = c.InitialClusterFromName(c.Name)
	e, err := embed.StartEtcd(c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(e.Close)
	select {
	case <-e.Server.ReadyNotify():
	case err := <-e.Err():
		t.Fatal(err)
	case <-time.After(time.Minute):
		t.Fatal("etcd did not start")
	}
	return client.String()
}
