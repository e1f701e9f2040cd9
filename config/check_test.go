package config

import (
	"fmt"
	"strings"
	"testing"
)

// rule is a line of settings that is refused for one reason, told in words
// that begin with the setting to change; without a setting it is allowed.
type rule struct{ env, setting, say string }

func checkRules(t *testing.T, rules []rule) {
	for _, c := range rules {
		t.Run(c.env, func(t *testing.T) {
			clean(t, strings.Fields(c.env)...)
			got := problems(t)
			switch {
			case c.setting == "" && len(got) > 0:
				t.Errorf("refused: %q", got)
			case c.setting != "" && len(got) != 1:
				t.Errorf("%d problems: %q", len(got), got)
			case c.setting != "" && (!strings.HasPrefix(got[0], c.setting) || !strings.Contains(got[0], c.say)):
				t.Errorf("%q does not begin with %s and say %q", got[0], c.setting, c.say)
			}
		})
	}
}

func TestRules(t *testing.T) {
	many := func(n int) string {
		var list []string
		for i := range n {
			list = append(list, fmt.Sprintf("tcp://h:%d", 1000+i))
		}
		return strings.Join(list, ",")
	}
	checkRules(t, []rule{
		{"ENDPOINTS=tcp://h:5557", "", ""},
		{"", "", ""},
		{"ENGINE=static", "KVRELAY_ENGINE", "KVRELAY_ENDPOINTS"},
		{"ENGINE=STATIC ENDPOINTS=ipc:///run/kv.sock", "", ""},
		{"ENGINE=vllm", "", ""},
		{"ENGINE=sglang DISCOVERY_URL=http://h:30000", "", ""},
		{"ENGINE=openengine DISCOVERY_URL=grpcs://h:1", "", ""},
		{"ENGINE=openengine DISCOVERY_URL=HTTPS://h:1", "KVRELAY_DISCOVERY_URL", "grpc:// or grpcs://"},
		{"DISCOVERY_URL=grpc://h:50051 DISCOVERY_TOKEN=t", "KVRELAY_DISCOVERY_URL", "want grpcs://"},
		{"DISCOVERY_URL=http://10.0.0.1:80 DISCOVERY_TOKEN=t", "KVRELAY_DISCOVERY_URL", "want https://"},
		{"DISCOVERY_URL=grpcs://h:50051 DISCOVERY_TOKEN=t ENGINE=vllm RANKS=2", "", ""},
		{"DISCOVERY_URL=http://localhost:80 DISCOVERY_TOKEN=t", "", ""},
		{"DISCOVERY_URL=http://127.0.0.2:80 DISCOVERY_TOKEN=t", "", ""},
		{"DISCOVERY_URL=grpc://[::1]:80 DISCOVERY_TOKEN=t", "", ""},
		{"DISCOVERY_TOKEN=t", "", ""},
		{"DISCOVERY_URL=http://[::1]:8000", "", ""},
		{"DISCOVERY_URL=h:50051", "KVRELAY_DISCOVERY_URL", "grpc://"},
		{"DISCOVERY_URL=ftp://h:1", "KVRELAY_DISCOVERY_URL", "scheme"},
		{"DISCOVERY_URL=http://h", "KVRELAY_DISCOVERY_URL", "no port"},
		{"DISCOVERY_URL=http://u:p@h:1", "KVRELAY_DISCOVERY_URL", "no user"},
		{"DISCOVERY_URL=http://h:1/x", "KVRELAY_DISCOVERY_URL", "follow"},
		{"ENGINE=static DISCOVERY_URL=http://h:1 ENDPOINTS=tcp://h:1", "KVRELAY_DISCOVERY_URL", "ENGINE=static"},
		{"DISCOVERY_URL=http://h:1 ENDPOINTS=tcp://h:1", "", ""}, // auto: ENDPOINTS win
		{"ENDPOINTS=tcp://h:1 TOPIC_EXACT=true", "", ""},         // the empty topic alone
		{"ENDPOINTS=tcp://h:1 TOPIC_EXACT=true TOPIC=kv", "", ""},
		{"TOPIC_EXACT=true", "", ""}, // the engine says its topic
		{"ENGINE=vllm ENDPOINTS=tcp://h:1", "KVRELAY_ENGINE", "auto or static"},
		{"ENGINE=vllm REPLAY_ENDPOINTS=tcp://h:1", "", ""},
		{"ENDPOINTS=tcp://h:1 DISCOVERY_TOKEN=s3", "KVRELAY_DISCOVERY_TOKEN", "only with discovery"},
		{"ENDPOINTS=tcp://h:1 REWRITE_LOOPBACK=true", "KVRELAY_REWRITE_LOOPBACK", "only with discovery"},

		{"ENDPOINTS=" + many(3), "", ""},
		{"ENDPOINTS=" + many(3) + " RANKS=3", "", ""},
		{"ENDPOINTS=" + many(3) + " RANKS=1", "KVRELAY_ENDPOINTS", "one for each of the 1 ranks"},
		{"ENDPOINTS=" + many(3) + " RANKS=4", "KVRELAY_ENDPOINTS", "one for each of the 4 ranks"},
		{"ENDPOINTS=" + many(3) + " REPLAY_ENDPOINTS=" + "tcp://h:1,tcp://h:2", "KVRELAY_REPLAY_ENDPOINTS", "one for each of the 3 ranks"},
		{"ENDPOINTS=" + many(3) + " REPLAY_ENDPOINTS=tcp://h:2000", "", ""},
		{"ENDPOINTS=tcp://h:65530 RANKS=6", "", ""},
		{"ENDPOINTS=tcp://h:65530 RANKS=7", "KVRELAY_ENDPOINTS", "a port of at most 65529"},
		{"ENDPOINTS=tcp://h:65530 RANKS=2 FIRST_RANK=4", "", ""},
		{"ENDPOINTS=tcp://h:65530 RANKS=3 FIRST_RANK=4", "KVRELAY_ENDPOINTS", "a port of at most 65529"},
		{"ENDPOINTS=tcp://h:65530 FIRST_RANK=60", "", ""},
		{"ENDPOINTS=tcp://h:1 REPLAY_ENDPOINTS=tcp://h:65535 RANKS=2", "KVRELAY_REPLAY_ENDPOINTS", "a port of at most 65534"},
		{"ENDPOINTS=tcp://h:1 FIRST_RANK=65535", "", ""},
		{"ENDPOINTS=tcp://h:1 FIRST_RANK=65535 RANKS=2", "KVRELAY_FIRST_RANK", "ranks up to 65535"},
		{"ENDPOINTS=ipc:///x RANKS=2", "KVRELAY_ENDPOINTS", "one entry per rank"},
		{"ENDPOINTS=ipc:///x,ipc:///y RANKS=2", "", ""},
		{"ENDPOINTS=tcp://h:5557 REPLAY_ENDPOINTS=tcp://h:5558 RANKS=2", "KVRELAY_REPLAY_ENDPOINTS", "tcp://h:5558 is both the live endpoint of rank 1 and the replay endpoint of rank 0"},
		{"ENDPOINTS=tcp://h:5557 REPLAY_ENDPOINTS=tcp://h:5559 RANKS=2", "", ""},
		{"ENDPOINTS=tcp://h:5559 REPLAY_ENDPOINTS=tcp://h:5557 RANKS=3", "KVRELAY_REPLAY_ENDPOINTS", "overlap"},
		{"ENDPOINTS=tcp://localhost:5557 REPLAY_ENDPOINTS=tcp://127.0.0.1:5557", "KVRELAY_REPLAY_ENDPOINTS", "overlap"},
		{"ENDPOINTS=tcp://H:5557 REPLAY_ENDPOINTS=tcp://h:5557", "KVRELAY_REPLAY_ENDPOINTS", "overlap"},
		{"ENDPOINTS=tcp://[::1]:5557 REPLAY_ENDPOINTS=tcp://[0:0::1]:5557", "KVRELAY_REPLAY_ENDPOINTS", "overlap"},
		{"ENDPOINTS=tcp://a:5557 REPLAY_ENDPOINTS=tcp://b:5557", "", ""},
		{"ENDPOINTS=tcp://h:1,tcp://h:1", "KVRELAY_ENDPOINTS", "both the live endpoint of rank 0 and the live endpoint of rank 1"},
		{"ENDPOINTS=listen:tcp://*:5557 RANKS=2 REPLAY_ENDPOINTS=none", "", ""},
		{"ENDPOINTS=tcp://h:1 REPLAY_ENDPOINTS=listen:tcp://*:2", "KVRELAY_REPLAY_ENDPOINTS", "no listen:"},
		{"ENDPOINTS=tcp://h:1 REPLAY_ENDPOINTS=none,tcp://h:2", "KVRELAY_REPLAY_ENDPOINTS", "entry 1"},

		{"ENDPOINTS=tcp://h:1 SINK=jetstream NATS_URL=h", "", ""},
		{"ENDPOINTS=tcp://h:1 SINK=jetstream", "KVRELAY_SINK", "want KVRELAY_NATS_URL"},
		{"ENDPOINTS=tcp://h:1 SINK=stdout", "", ""},
		{"ENDPOINTS=tcp://h:1 SINK=stdout NATS_URL=h", "KVRELAY_NATS_URL", "only with SINK=nats"},
		{"ENDPOINTS=tcp://h:1 SINK=stdout NATS_TLS_CA=f", "KVRELAY_NATS_TLS_CA", "only with SINK=nats"},
		{"ENDPOINTS=tcp://h:1 SINK=stdout SUBJECT=a", "KVRELAY_SUBJECT", "only with SINK=nats"},
		{"ENDPOINTS=tcp://h:1 STREAM=X", "KVRELAY_STREAM", "only with SINK=jetstream"},
		{"ENDPOINTS=tcp://h:1 STREAM_CREATE=false", "KVRELAY_STREAM_CREATE", "only with SINK=jetstream"},
		{"ENDPOINTS=tcp://h:1 STREAM_CREATE=true", "", ""},

		{"ENDPOINTS=tcp://h:1 NATS_URL=nats://a:4222,b:4222,tls://c", "", ""},
		{"ENDPOINTS=tcp://h:1 NATS_URL=http://a", "KVRELAY_NATS_URL", "scheme"},
		{"ENDPOINTS=tcp://h:1 NATS_URL=nats://a,nats://", "KVRELAY_NATS_URL", "no host) in entry 2"},
		{"ENDPOINTS=tcp://h:1 NATS_URL=nats://a:70000", "KVRELAY_NATS_URL", "65535"},
		{"ENDPOINTS=tcp://h:1 NATS_URL=nats://a,ws://b", "KVRELAY_NATS_URL", "ws://"},
		{"ENDPOINTS=tcp://h:1 NATS_URL=nats://u:12,y@h:1", "KVRELAY_NATS_URL", "nats:// before a user, or %2C for a comma in a password in entry 2"},
		{"ENDPOINTS=tcp://h:1 NATS_URL=nats://a:1,nats://u:p@h:1", "", ""},
		{"ENDPOINTS=tcp://h:1 NATS_URL=u:p@a,u:p@b,c", "", ""},
		{"ENDPOINTS=tcp://h:1 NATS_URL=a,,b", "KVRELAY_NATS_URL", "empty entry"},
		{"ENDPOINTS=tcp://h:1 NATS_URL=h NATS_USER=u NATS_PASSWORD=p", "", ""},
		{"ENDPOINTS=tcp://h:1 NATS_USER=u NATS_PASSWORD=p", "KVRELAY_NATS_USER", "NATS_URL"},
		{"ENDPOINTS=tcp://h:1 NATS_URL=h NATS_PASSWORD=p", "KVRELAY_NATS_PASSWORD", "NATS_USER"},
		{"ENDPOINTS=tcp://h:1 NATS_URL=h NATS_USER=u NATS_TOKEN=t", "KVRELAY_NATS_USER", "NATS_USER and NATS_TOKEN"},
		{"ENDPOINTS=tcp://h:1 NATS_URL=nats://u:p@h NATS_TOKEN=t", "KVRELAY_NATS_TOKEN", "one way to log in"},
		{"ENDPOINTS=tcp://h:1 NATS_URL=nats://u:p@h", "", ""},
		{"ENDPOINTS=tcp://h:1 NATS_URL=h NATS_TLS_CERT=c", "KVRELAY_NATS_TLS_CERT", "NATS_TLS_KEY"},
		{"ENDPOINTS=tcp://h:1 NATS_URL=h NATS_TLS_KEY=c", "KVRELAY_NATS_TLS_KEY", "NATS_TLS_CERT"},
		{"ENDPOINTS=tcp://h:1 NATS_TLS_CA=c", "KVRELAY_NATS_TLS_CA", "only with NATS_URL"},

		{"ENDPOINTS=tcp://h:1 REGISTER_WORKER=true", "KVRELAY_REGISTER_WORKER", "only with MEMBERSHIP"},
		{"ENDPOINTS=tcp://h:1 MEMBERSHIP=file MEMBERSHIP_PATH=/x REGISTER_WORKER=true", "", ""},
		{"ENDPOINTS=tcp://h:1 MEMBERSHIP=file MEMBERSHIP_PATH=/x WORKER_ID=7", "", ""},
		{"ENDPOINTS=tcp://h:1 REGISTER_WORKER=false", "", ""},
		{"ENDPOINTS=tcp://h:1 RECOVERY_ADDR=h:1", "KVRELAY_RECOVERY_ADDR", "only with MEMBERSHIP"},
		{"ENDPOINTS=tcp://h:1 MEMBERSHIP_PATH=/x", "KVRELAY_MEMBERSHIP_PATH", "only with MEMBERSHIP=file"},
		{"ENDPOINTS=tcp://h:1 ETCD_USER=u", "KVRELAY_ETCD_USER", "only with MEMBERSHIP=etcd"},

		{"ENDPOINTS=tcp://h:1 ADMIN_ADDR=OFF", "", ""},
		{"ENDPOINTS=tcp://h:1 ADMIN_ADDR=:0", "", ""},
		{"ENDPOINTS=tcp://h:1 ADMIN_ADDR=[::]:9558", "", ""},
		{"ENDPOINTS=tcp://h:1 ADMIN_ADDR=9558", "KVRELAY_ADMIN_ADDR", "host:port"},
		{"ENDPOINTS=tcp://h:1 ADMIN_ADDR=h:http", "KVRELAY_ADMIN_ADDR", "host:port"},
		{"ENDPOINTS=tcp://h:1 NAMESPACE=a\x01b", "KVRELAY_NAMESPACE", "control"},
		{"ENDPOINTS=tcp://h:1 HEARTBEAT=10s", "KVRELAY_HEARTBEAT", "longer than HEARTBEAT"},
		{"ENDPOINTS=tcp://h:1 PEER_TIMEOUT=1s", "KVRELAY_PEER_TIMEOUT", "longer than HEARTBEAT"},
		{"ENDPOINTS=tcp://h:1 DEAD_AFTER=25h", "KVRELAY_DEAD_AFTER", "24h"},
		{"ENDPOINTS=tcp://h:1 MAX_FRAME_BYTES=2049MiB", "KVRELAY_MAX_FRAME_BYTES", "2GiB"},
	})
}

// TestRulesOfMembership: and of what goes with it.
func TestRulesOfMembership(t *testing.T) {
	checkRules(t, []rule{
		{"SINK=jetstream NATS_URL=h STREAM=A", "", ""},
		{"SINK=jetstream NATS_URL=h STREAM=A.B", "KVRELAY_STREAM", "without dots"},
		{"SINK=jetstream NATS_URL=h SUBJECT=a.{worker_id}.{dp_rank}", "", ""},
		{"SINK=jetstream NATS_URL=h SUBJECT=a.{worker_id}", "KVRELAY_SUBJECT", "{dp_rank}"},
		{"MEMBERSHIP=file MEMBERSHIP_PATH=/x REGISTER_WORKER=true RECOVERY_ADDR=:0", "", ""},
		{"MEMBERSHIP=file MEMBERSHIP_PATH=/x REQUEST_PLANE=NATS", "", ""},
		{"MEMBERSHIP=file MEMBERSHIP_PATH=/x REQUEST_PLANE=tcp RECOVERY_ADDR=:0", "", ""},
		{"MEMBERSHIP=file MEMBERSHIP_PATH=/x REQUEST_PLANE=http", "KVRELAY_REQUEST_PLANE", "tcp or nats"},
		{"MEMBERSHIP=file MEMBERSHIP_PATH=/x REQUEST_PLANE=nats RECOVERY_ADDR=:0", "KVRELAY_RECOVERY_ADDR", "only with REQUEST_PLANE=tcp"},
		{"REQUEST_PLANE=nats", "KVRELAY_REQUEST_PLANE", "only with MEMBERSHIP"},
		{"MEMBERSHIP=file MEMBERSHIP_PATH=/x NAMESPACE=a/b", "KVRELAY_NAMESPACE", "do not find"},
		{"MEMBERSHIP=file MEMBERSHIP_PATH=/x COMPONENT=ü", "KVRELAY_COMPONENT", "do not find"},
		{"MEMBERSHIP=file MEMBERSHIP_PATH=/x ENDPOINT_NAME=a%2Fb", "KVRELAY_ENDPOINT_NAME", "do not find"},
		{"MEMBERSHIP=file MEMBERSHIP_PATH=/x NAMESPACE=Dyn-a_b.1", "", ""},
		{"ENDPOINTS=tcp://h:1 NAMESPACE=a/b", "", ""},
		{"MEMBERSHIP=file MEMBERSHIP_PATH=/x WORKER_ID=0", "KVRELAY_WORKER_ID", "never 0"},
		{"MEMBERSHIP=file MEMBERSHIP_PATH=/x WORKER_ID=0 REGISTER_WORKER=true", "", ""},
		{"MEMBERSHIP=file MEMBERSHIP_PATH=/x WORKER_ID=18446744073709551615", "", ""},
		{"MEMBERSHIP=etcd ETCD_ENDPOINTS=http://e:1 WORKER_ID=0", "KVRELAY_WORKER_ID", "never 0"},
		{"MEMBERSHIP=etcd ETCD_ENDPOINTS=http://e:1 WORKER_ID=9223372036854775807", "", ""},
		{"MEMBERSHIP=etcd ETCD_ENDPOINTS=http://e:1 WORKER_ID=9223372036854775808", "KVRELAY_WORKER_ID", "at most 9223372036854775807"},
		{"MEMBERSHIP=etcd ETCD_ENDPOINTS=http://e:1 WORKER_ID=9223372036854775808 REGISTER_WORKER=true", "", ""},
		{"WORKER_ID=0", "", ""},
		{"MEMBERSHIP=file", "KVRELAY_MEMBERSHIP", "DYN_FILE_KV"},
		{"MEMBERSHIP=etcd", "KVRELAY_MEMBERSHIP", "ETCD_ENDPOINTS"},
		{"MEMBERSHIP=etcd ETCD_ENDPOINTS=http://a:2379,b:2379 ETCD_USER=u ETCD_PASSWORD=p", "", ""},
		{"MEMBERSHIP=etcd ETCD_ENDPOINTS=https://a:2379/,https://b:2379 ETCD_TLS_CA=f ETCD_TLS_CERT=c ETCD_TLS_KEY=k", "", ""},
		{"MEMBERSHIP=etcd ETCD_ENDPOINTS=a:2379 ETCD_TLS_CA=f", "", ""},
		{"MEMBERSHIP=etcd ETCD_ENDPOINTS=http://a:2379,https://b:2379", "KVRELAY_ETCD_ENDPOINTS", "all by http://"},
		{"MEMBERSHIP=etcd ETCD_ENDPOINTS=b:2379,https://a:2379 ETCD_TLS_CA=f", "", ""},
		{"MEMBERSHIP=etcd ETCD_ENDPOINTS=http://a:2379 ETCD_TLS_CA=f", "KVRELAY_ETCD_TLS_CA", "https://"},
		{"MEMBERSHIP=etcd ETCD_ENDPOINTS=a:2379 ETCD_USER=u", "KVRELAY_ETCD_USER", "ETCD_PASSWORD"},
		{"MEMBERSHIP=etcd ETCD_ENDPOINTS=tcp://a:2379", "KVRELAY_ETCD_ENDPOINTS", "scheme"},
		{"MEMBERSHIP=etcd ETCD_ENDPOINTS=http://u:p@a:2379", "KVRELAY_ETCD_ENDPOINTS", "no user"},
		{"MEMBERSHIP=etcd ETCD_ENDPOINTS=http://a", "KVRELAY_ETCD_ENDPOINTS", "no port"},
		{"MEMBERSHIP=etcd ETCD_ENDPOINTS=a:1 ETCD_PASSWORD=p", "KVRELAY_ETCD_PASSWORD", "ETCD_USER"},
		{"MEMBERSHIP=etcd ETCD_ENDPOINTS=a:1 ETCD_TLS_KEY=p", "KVRELAY_ETCD_TLS_KEY", "ETCD_TLS_CERT"},
		{"MEMBERSHIP=file MEMBERSHIP_PATH=/x SUBJECT=a", "KVRELAY_MEMBERSHIP", "no SUBJECT"},
		{"MEMBERSHIP=file MEMBERSHIP_PATH=/x PROFILE=json", "KVRELAY_MEMBERSHIP", "PROFILE=dynamo"},
		{"MEMBERSHIP=file MEMBERSHIP_PATH=/x SINK=stdout", "KVRELAY_MEMBERSHIP", "SINK=nats"},
		{"MEMBERSHIP=kubernetes POD_NAME=p POD_NAMESPACE=n POD_UID=u RECOVERY_ADDR=h", "KVRELAY_RECOVERY_ADDR", "host:port"},
		{"REGISTER_WORKER=true", "KVRELAY_REGISTER_WORKER", "only with MEMBERSHIP"},
	})
}

// TestPodRules: with MEMBERSHIP=kubernetes the pod is known, and the worker's
// id is the one that Dynamo's routers compute.
func TestPodRules(t *testing.T) {
	const pod = "MEMBERSHIP=kubernetes POD_NAME=worker-0 POD_NAMESPACE=ns POD_UID=0af3-1 "
	checkRules(t, []rule{
		{pod, "", ""},
		{pod + "REGISTER_WORKER=true RECOVERY_ADDR=:7000", "", ""},
		{pod + "WORKER_ID=1186445869714687", "", ""},
		{pod + "WORKER_ID=1186445869714687 WORKER_CONTAINER=main", "", ""},
		{pod + "WORKER_ID=1186445869714688", "KVRELAY_WORKER_ID", "want 1186445869714687, or leave it out"},
		{pod + "WORKER_CONTAINER=engine WORKER_ID=1186445869714687", "KVRELAY_WORKER_ID", "worker-0-engine"},
		{pod + "WORKER_CONTAINER=a/b", "KVRELAY_WORKER_CONTAINER", "container"},
		{strings.Replace(pod, "POD_NAME=worker-0", "", 1), "KVRELAY_POD_NAME", "metadata.name"},
		{strings.Replace(pod, "POD_NAMESPACE=ns", "", 1), "KVRELAY_POD_NAMESPACE", "metadata.namespace"},
		{strings.Replace(pod, "POD_UID=0af3-1", "", 1), "KVRELAY_POD_UID", "metadata.uid"},
		{strings.Replace(pod, "worker-0", "../worker", 1), "KVRELAY_POD_NAME", "lower-case"},
		{"POD_NAME=worker-0", "KVRELAY_POD_NAME", "MEMBERSHIP=kubernetes"},
		{"WORKER_CONTAINER=engine", "KVRELAY_WORKER_CONTAINER", "MEMBERSHIP=kubernetes"},
		{pod + "SINK=stdout", "KVRELAY_MEMBERSHIP", "SINK=nats"},
	})
	clean(t, strings.Fields(pod)...)
	t.Setenv("DYN_KUBE_DISCOVERY_MODE", "container")
	if got := problems(t); len(got) != 1 || !strings.HasPrefix(got[0], "KVRELAY_WORKER_CONTAINER") {
		t.Errorf("Dynamo's container mode without a container: %q", got)
	}
}

// TestWorkerResource: the variables that Dynamo's own processes have are read,
// and the id follows the container mode.
func TestWorkerResource(t *testing.T) {
	for container, want := range map[string]string{"": "p-0", "main": "p-0", "engine": "p-0-engine"} {
		clean(t, static, "MEMBERSHIP=kubernetes", "WORKER_CONTAINER="+container)
		for name, value := range map[string]string{"POD_NAME": "p-0", "POD_NAMESPACE": "ns", "POD_UID": "u"} {
			t.Setenv(name, value)
		}
		c := mustLoad(t)
		if c.WorkerResource() != want || c.PodNamespace != "ns" || c.PodUID != "u" || c.Worker("host") != DynamoWorkerID(want) {
			t.Errorf("container %q: %s, %d", container, c.WorkerResource(), c.Worker("host"))
		}
	}
}

// TestRequestPlane: the routers' own variable counts, and is nobody's business
// where nothing is put on record.
func TestRequestPlane(t *testing.T) {
	const file = "MEMBERSHIP=file"
	for _, c := range []struct{ env, dyn, want, problem string }{
		{file, "", PlaneTCP, ""},
		{file, "tcp", PlaneTCP, ""},
		{file, "NATS", PlaneNATS, ""},
		{file, "http", "", "KVRELAY_REQUEST_PLANE"},
		{"MEMBERSHIP=off", "http", "http", ""},
	} {
		clean(t, static, c.env, "MEMBERSHIP_PATH=")
		t.Setenv("DYN_FILE_KV", "/x")
		t.Setenv("DYN_REQUEST_PLANE", c.dyn)
		if c.problem != "" {
			if got := problems(t); len(got) != 1 || !strings.HasPrefix(got[0], c.problem) {
				t.Errorf("%q: %q", c.dyn, got)
			}
		} else if got := mustLoad(t).RequestPlane; got != c.want {
			t.Errorf("%s, %q: %q, want %q", c.env, c.dyn, got, c.want)
		}
	}
}
