//go:build slim

package main

import (
	"errors"
	"log/slog"

	"github.com/kvrelay/kvrelay/config"
	"github.com/kvrelay/kvrelay/membership"
)

// A kvrelay built with -tags slim is a fifth smaller, on disk and at rest: the
// clients of etcd and Kubernetes, and what they import, are left out.

func etcdStore(*config.Config, *slog.Logger) (membership.Store, error) {
	return nil, errors.New("this kvrelay was built with -tags slim, without MEMBERSHIP=etcd: use one built without the tag, or MEMBERSHIP=file")
}

func kubeStore(*config.Config, *slog.Logger) (membership.Store, error) {
	return nil, errors.New("this kvrelay was built with -tags slim, without MEMBERSHIP=kubernetes: use one built without the tag")
}
