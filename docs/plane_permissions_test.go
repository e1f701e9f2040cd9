package docs

import (
	be "encoding/binary"
	"fmt"
	"net"
	"regexp"
	"strings"
	"testing"
)

// TestRequestPlanePermissions: with the permissions of security.md a relay goes on
// record, and a router is acknowledged and called home, over NATS too.
func TestRequestPlanePermissions(t *testing.T) {
	url := guarded(t, "conf authorization", "")
	endpoint, replay := mock(t)
	relay := start(t, "on record for Dynamo routers", []string{"KVRELAY_NATS_USER=relay", "KVRELAY_NATS_PASSWORD=relay-secret"},
		"--nats-url", url, "--endpoints", endpoint, "--replay-endpoints", replay, "--worker-id", "66", "--admin-addr", "off",
		"--membership", "file", "--membership-path", t.TempDir(), "--register-worker=true", "--block-size", "16", "--request-plane", "nats")
	publisher := regexp.MustCompile(`/kv-events/([0-9a-f]+)`).FindStringSubmatch(relay.text())
	if publisher == nil {
		t.Fatalf("no publisher in:\n%s", relay.text())
	}
	home, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer home.Close()
	control := fmt.Sprintf(`{"id":"x","connection_info":{"info":"{\"address\":\"%s\",\"subject\":\"s\"}"}}`, home.Addr())
	query := `{"worker_id":66,"dp_rank":0,"start_event_id":null,"end_event_id":null}`
	body := be.BigEndian.AppendUint64(nil, uint64(len(control)))
	body = be.BigEndian.AppendUint64(body, uint64(len(query)))
	body = append(be.BigEndian.AppendUint64(body, 0), control+query...)

	nc, refused := as(t, url, "router")
	m, err := nc.Request("dynamo_backend.worker_kv_query_source_"+publisher[1]+"-42", body, patience)
	if err != nil || len(m.Data) != 0 {
		t.Fatalf("not acknowledged: %v\n%s", err, relay.text())
	}
	c, err := home.Accept()
	if err != nil {
		t.Fatal(err)
	}
	c.Close()
	select {
	case err := <-refused:
		t.Errorf("the router: %v", err)
	default:
	}
	if strings.Contains(relay.text(), "ermissions") {
		t.Errorf("the relay may not do what it has to:\n%s", relay.text())
	}
}
