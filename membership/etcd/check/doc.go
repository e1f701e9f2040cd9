// Package check holds the tests of membership/etcd against etcd itself, and in
// server the etcd that other tests run. It is a module of its own, so that
// kvrelay does not depend on etcd's server.
package check
