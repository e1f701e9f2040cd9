package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"time"
)

// maxBenchProfile bounds a CPU profile in bytes; a longer one is an error. Ten
// minutes of a busy relay have some hundred kilobytes.
const maxBenchProfile = 64 << 20

// benchAdmin is a loopback address that is free now, for the admin side of the
// relay that is measured.
func benchAdmin() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	defer l.Close()
	return l.Addr().String(), nil
}

// benchProfile has the relay at admin profile its CPU for a while, and writes
// that to file.
func benchProfile(ctx context.Context, admin, file string, length time.Duration) error {
	seconds := max(1, int((length+time.Second/2)/time.Second))
	ctx, cancel := context.WithTimeout(ctx, time.Duration(seconds)*time.Second+30*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, fmt.Sprintf("http://%s/debug/pprof/profile?seconds=%d", admin, seconds), nil)
	if err != nil {
		return err
	}
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}} // no proxy is between us
	resp, err := client.Do(req)
	if err != nil {
		return fmt.Errorf("the relay's CPU profile: %w", err)
	}
	defer resp.Body.Close()
	profile, err := io.ReadAll(io.LimitReader(resp.Body, maxBenchProfile+1))
	switch {
	case err != nil:
		return fmt.Errorf("the relay's CPU profile: %w", err)
	case resp.StatusCode != http.StatusOK:
		return fmt.Errorf("the relay's CPU profile: %s", resp.Status)
	case len(profile) > maxBenchProfile:
		return fmt.Errorf("the relay's CPU profile has more than %d bytes", maxBenchProfile)
	}
	return os.WriteFile(file, profile, 0o644)
}
