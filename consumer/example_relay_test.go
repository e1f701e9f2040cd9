package consumer_test

import (
	"context"
	"os"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// relayOfTheExample is a NATS server with what a relay has published there.
func relayOfTheExample() (url string, stop func()) {
	dir, err := os.MkdirTemp("", "example-")
	check(err)
	s, err := server.NewServer(&server.Options{Host: "127.0.0.1", Port: -1, NoSigs: true, NoLog: true, JetStream: true, StoreDir: dir})
	check(err)
	s.Start()
	nc, err := nats.Connect(s.ClientURL())
	check(err)
	defer nc.Close()
	js, err := jetstream.New(nc)
	check(err)
	ctx := context.Background()
	_, err = js.CreateStream(ctx, jetstream.StreamConfig{Name: "KVRELAY", Subjects: []string{"kvrelay.*.*.*.events"}})
	check(err)
	_, err = js.PublishMsg(ctx, &nats.Msg{
		Subject: "kvrelay.dynamo.42.0.events",
		Header:  nats.Header{"Kvrelay-Publisher": {"7"}},
		Data: []byte(`[{"worker_id":42,"storage_tier":"device","event":{"event_id":1,"data":"cleared","dp_rank":0}},
			{"worker_id":42,"storage_tier":"device","residency_domain":"worker","event":{"event_id":2,"data":{"stored":{"parent_hash":null,"start_position":null,"blocks":[
			{"block_hash":4117275816416024698,"tokens_hash":4117275816416024698,"mm_extra_info":null},
			{"block_hash":5947898228081096063,"tokens_hash":6081346995852963768,"mm_extra_info":null}]}},"dp_rank":0}}]`),
	})
	check(err)
	return s.ClientURL(), func() {
		s.Shutdown()
		s.WaitForShutdown()
		_ = os.RemoveAll(dir)
	}
}

func check(err error) {
	if err != nil {
		panic(err)
	}
}
