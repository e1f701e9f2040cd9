// Package docs holds the tests that keep the documentation true: its commands
// are run, its NATS permissions are tried, and its log lines, metrics, settings
// and links are compared with the code.
package docs
