package discovery

import (
	"context"
	"io"
	"net/http"
	"time"
)

const (
	// callTimeout is the deadline of every question. An engine that takes
	// longer is asked again later.
	callTimeout = 5 * time.Second
	// maxAnswer bounds an answer in bytes; a longer one is refused. SGLang's
	// server info has about 20 kB for each rank.
	maxAnswer = 8 << 20
	// maxSourceList bounds a list of sources in gRPC, which takes many times its
	// size once it is decoded; a longer one is refused.
	maxSourceList = 1 << 20
)

// get asks t for a path over HTTP. It follows no redirect, which could take
// the token elsewhere, and no proxy: the engine's sockets are reached without.
func get(ctx context.Context, t target, o *Options, path string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	scheme := "http://"
	if t.tls {
		scheme = "https://"
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, scheme+t.addr+path, nil)
	if err != nil {
		return nil, failf(broken, "%s", clean(err.Error()))
	}
	req.Header.Set("Accept", "application/json")
	req.Header.Set("User-Agent", userAgent)
	if o.Token != "" {
		req.Header.Set("Authorization", "Bearer "+o.Token)
	}
	transport := &http.Transport{
		TLSClientConfig: o.TLS.Clone(), DisableKeepAlives: true, DisableCompression: true,
		MaxResponseHeaderBytes: 64 << 10,
	}
	defer transport.CloseIdleConnections()
	client := http.Client{Transport: transport, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	resp, err := client.Do(req)
	if err != nil {
		return nil, ofConnection(err)
	}
	defer resp.Body.Close()
	switch code := resp.StatusCode; code {
	case http.StatusOK:
	case http.StatusNotFound, http.StatusMethodNotAllowed, http.StatusNotImplemented:
		return nil, failf(unsupported, "%d for %s", code, path)
	case http.StatusUnauthorized, http.StatusForbidden:
		return nil, ofDenial(o, resp.Status)
	case http.StatusRequestTimeout, http.StatusTooManyRequests, http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		return nil, failf(notReady, "not ready yet (%d for %s)", code, path)
	default:
		return nil, failf(broken, "%d for %s", code, path)
	}
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer+1))
	switch {
	case err != nil:
		return nil, ofConnection(err)
	case len(body) > maxAnswer:
		return nil, failf(broken, "its answer to %s is longer than %d bytes", path, maxAnswer)
	}
	return body, nil
}

const userAgent = "kvrelay"

// ofDenial tells of a token that is wrong, or missing.
func ofDenial(o *Options, how string) *failure {
	if o.Token == "" {
		return failf(denied, "it wants a token (%s): set DISCOVERY_TOKEN or DISCOVERY_TOKEN_FILE", how)
	}
	return failf(denied, "it does not accept DISCOVERY_TOKEN (%s)", how)
}
