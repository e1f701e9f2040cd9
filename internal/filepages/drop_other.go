//go:build !linux

package filepages

// Drop does nothing here.
func Drop() error { return nil }
