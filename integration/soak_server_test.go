package integration

import (
	"encoding/json"
	"fmt"
	"os"

	"github.com/nats-io/nats-server/v2/server"
)

// natsProcess is the environment variable that makes this test binary a
// nats-server instead, so that one can be killed as a process is: a JSON object
// of the port and the folder of its streams.
const natsProcess = "KVRELAY_TEST_NATS_SERVER"

type natsSettings struct {
	Port int    `json:"port"`
	Dir  string `json:"dir"`
}

// serveNATS is a nats-server with JetStream until it is told to end or killed.
func serveNATS(text string) int {
	var o natsSettings
	err := json.Unmarshal([]byte(text), &o)
	var s *server.Server
	if err == nil {
		s, err = server.NewServer(&server.Options{Host: "127.0.0.1", Port: o.Port, JetStream: true, StoreDir: o.Dir, NoLog: true, NoFastProducerStall: true})
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "nats-server:", err)
		return 1
	}
	s.Start()
	s.WaitForShutdown()
	return 0
}
