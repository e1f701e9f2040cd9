// Command server is an etcd of one member for tests, which keeps its data in a
// folder. It prints a line when it is ready, and runs until SIGTERM.
//
//	server <folder> <client address> <peer address>
package main

import (
	"fmt"
	"net/url"
	"os"
	"os/signal"
	"syscall"

	"go.etcd.io/etcd/server/v3/embed"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) != 3 {
		return fmt.Errorf("want a folder, a client address and a peer address")
	}
	client, peer := []url.URL{{Scheme: "http", Host: args[1]}}, []url.URL{{Scheme: "http", Host: args[2]}}
	c := embed.NewConfig()
	c.Dir, c.LogLevel = args[0], "fatal" // its end looks like trouble to it
	c.ListenClientUrls, c.AdvertiseClientUrls, c.ListenPeerUrls, c.AdvertisePeerUrls = client, client, peer, peer
	c.InitialCluster = c.InitialClusterFromName(c.Name)
	e, err := embed.StartEtcd(c)
	if err != nil {
		return err
	}
	defer e.Close()
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, os.Interrupt, syscall.SIGTERM)
	select {
	case <-e.Server.ReadyNotify():
		fmt.Println("ready")
	case err := <-e.Err():
		return err
	case <-stop:
		return nil
	}
	select {
	case err := <-e.Err():
		return err
	case <-stop:
		return nil
	}
}
