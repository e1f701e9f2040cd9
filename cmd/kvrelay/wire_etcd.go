//go:build !slim

package main

import (
	"log/slog"

	"github.com/kvrelay/kvrelay/config"
	"github.com/kvrelay/kvrelay/membership"
	"github.com/kvrelay/kvrelay/membership/etcd"
)

// etcdStore is where MEMBERSHIP=etcd keeps records.
func etcdStore(c *config.Config, log *slog.Logger) (membership.Store, error) {
	return etcd.New(etcd.Options{
		Endpoints: c.EtcdEndpoints,
		User:      c.EtcdUser, Password: string(c.EtcdPassword),
		TLSCA: c.EtcdTLSCA, TLSCert: c.EtcdTLSCert, TLSKey: c.EtcdTLSKey,
		Log: log,
	})
}
