package consumer_test

import (
	"context"
	"fmt"

	"github.com/nats-io/nats.go"

	"github.com/kvrelay/kvrelay/consumer"
	"github.com/kvrelay/kvrelay/consumer/index"
)

// A router: it follows all workers and asks, for a prompt, who holds how much
// of it. Leave JetStream empty for relays with SINK=nats.
func Example() {
	url, stop := relayOfTheExample()
	defer stop()

	nc, err := nats.Connect(url, nats.MaxReconnects(-1))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer nc.Close()

	blocks := index.New(index.Options{BlockSize: 4})
	known := make(chan struct{}, 1)
	c, err := consumer.New(consumer.Options{
		Conn:      nc,
		Profile:   consumer.JSON,
		JetStream: "KVRELAY",
		OnEvent: func(e *consumer.Event) {
			blocks.Apply(e)
			if e.Kind == consumer.Stored {
				known <- struct{}{} // for this example only
			}
		},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- c.Run(ctx) }()

	// A request comes in.
	<-known
	for _, m := range blocks.Match(index.Prompt{Tokens: []uint32{11, 22, 33, 44, 55, 66, 77, 88, 99}}) {
		fmt.Printf("worker %d, rank %d: %d blocks on the device, %d in all\n",
			m.Rank.Worker, m.Rank.DP, m.Blocks[consumer.Device], m.Blocks[consumer.External])
	}

	cancel()
	if err := <-ended; err != nil {
		fmt.Println(err)
	}
	// Output: worker 42, rank 0: 2 blocks on the device, 2 in all
}

// One message, for those who have a subscription of their own. A Picture says
// what was missed, but cannot get it back: see Consumer.
func ExamplePicture_Fold() {
	p := consumer.NewPicture()
	m, err := consumer.ParseMessage("kvrelay.dynamo.42.0.events", nats.Header{consumer.PublisherHeader: {"7"}}, []byte(`[
		{"worker_id":42,"storage_tier":"device","event":{"event_id":1,"data":"cleared","dp_rank":0}},
		{"worker_id":42,"storage_tier":"device","event":{"event_id":2,"data":{"stored":{"parent_hash":null,"start_position":null,
			"blocks":[{"block_hash":5,"tokens_hash":6,"mm_extra_info":null}]}},"dp_rank":0}},
		{"worker_id":42,"storage_tier":"device","event":{"event_id":4,"data":{"removed":{"block_hashes":[9]}},"dp_rank":0}}]`))
	if err != nil {
		fmt.Println(err)
		return
	}
	out := p.Fold(m)
	rank := m.Events[0].Rank
	fmt.Printf("%d applied, %d missing; %s holds %d blocks\n", out.Applied, out.Missing, rank, p.Len(rank, consumer.Device))
	// Output: 3 applied, 1 missing; 42/0 holds 1 blocks
}
