// Package systemd holds the tests of the unit and of its environment file.
package systemd
