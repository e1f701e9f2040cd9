// Package etcd keeps Dynamo's records in etcd, as Dynamo does with
// DYN_DISCOVERY_BACKEND=etcd: a key a record, under a lease that is renewed.
// What nobody renews goes with its lease.
//
// Every record has a lease of its own. So a record is withdrawn by revoking its
// lease, and neither a write that was given up nor a withdrawal that failed can
// leave anything for longer than the lease.
package etcd

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"

	"github.com/kvrelay/kvrelay/membership"
)

const (
	// leaseFor is Dynamo's own lease.
	leaseFor = 10 * time.Second
	// tryFor bounds one attempt at anything, the connection included.
	tryFor = 3 * time.Second
	// retryAfter is the pause after a renewal that failed; jitter doubles it at most.
	retryAfter = 300 * time.Millisecond
	// repeatLog is the least time between two log lines about the same trouble.
	repeatLog = time.Minute
	// maxAnswer is the largest answer of etcd that is read (64 MiB: some 80 000
	// records of an endpoint). A larger one is an error: nothing is published then.
	maxAnswer = 64 << 20
	// attempts are those that the client makes at once: one more for a login
	// that has run out. Later ones are ours, which tell why.
	attempts = 3
)

// Options are a Store's fixed surroundings.
type Options struct {
	// Endpoints are host:port, http://host:port or https://host:port. One https,
	// or one of the TLS files, means TLS with all; http must not be among them then.
	Endpoints []string
	// User and Password log in; both or neither.
	User, Password string
	// TLSCA, TLSCert and TLSKey are PEM files. Without TLSCA the system's
	// authorities count. The certificate is read anew for each connection.
	TLSCA, TLSCert, TLSKey string
	// Lease is how long a record outlives who put it, in whole seconds; 0:
	// 10 s. etcd refuses none, but takes at least one and a half times its
	// election timeout.
	Lease time.Duration
	Log   *slog.Logger // nil: none
}

// Store is a membership.Store in etcd. Use New.
type Store struct {
	o    Options
	log  *slog.Logger
	wake chan struct{} // something is on record, or was not withdrawn

	turn   chan struct{} // a token for who changes client or users
	client *clientv3.Client
	end    context.CancelFunc // ends client
	users  int                // of client
	runs   bool               // Run does: client stays though nobody uses it

	// Owned by Run.
	lost, changed restored  // records that were written again: those that had gone, those that somebody had overwritten
	toldTaken     time.Time // when it was told last that another process has a record

	mu        sync.Mutex
	mine      map[string]record           // by key; also one that a first Put was not done with
	leaving   map[string]clientv3.LeaseID // what Delete has not removed yet, by key; Run removes it when etcd is back
	locked    map[string]chan struct{}    // keys that someone is at; closed when he leaves
	restoring string                      // the key that Run writes again, "": none
	giveUp    context.CancelFunc          // ends that
}

// record is a key that was put, or is being put. Without a lease nothing was
// written for it.
type record struct {
	value  []byte
	lease  clientv3.LeaseID
	placed bool // it is on record, and Run renews its lease
}

var _ membership.Store = (*Store)(nil)

// New makes a Store. It does no I/O: files and servers are looked at when they
// are needed, and again and again.
func New(o Options) (*Store, error) {
	var errs []error
	if len(o.Endpoints) == 0 {
		errs = append(errs, errors.New("no endpoints: set KVRELAY_ETCD_ENDPOINTS"))
	}
	if (o.User == "") != (o.Password == "") {
		errs = append(errs, errors.New("want both or none of KVRELAY_ETCD_USER and KVRELAY_ETCD_PASSWORD"))
	}
	if (o.TLSCert == "") != (o.TLSKey == "") {
		errs = append(errs, errors.New("want both or none of KVRELAY_ETCD_TLS_CERT and KVRELAY_ETCD_TLS_KEY"))
	}
	if o.Lease == 0 {
		o.Lease = leaseFor
	}
	if o.Lease < time.Second || o.Lease%time.Second != 0 {
		errs = append(errs, errors.New("a lease lasts whole seconds"))
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	o.Endpoints = slices.Clone(o.Endpoints)
	for i, e := range o.Endpoints {
		o.Endpoints[i] = strings.TrimSuffix(e, "/")
	}
	return &Store{
		o: o, log: o.Log,
		wake:    make(chan struct{}, 1),
		turn:    make(chan struct{}, 1),
		mine:    map[string]record{},
		leaving: map[string]clientv3.LeaseID{},
		locked:  map[string]chan struct{}{},
	}, errors.Join(errs...)
}

// use returns the client, made where there is none. Whoever is done with it
// says so; the last one closes it, unless Run runs.
func (s *Store) use(ctx context.Context) (c *clientv3.Client, done func(), err error) {
	select {
	case s.turn <- struct{}{}:
	case <-ctx.Done():
		return nil, nil, ctx.Err()
	}
	defer func() { <-s.turn }()
	if s.client == nil {
		if s.client, s.end, err = s.dial(ctx); err != nil {
			s.client = nil
			return nil, nil, err
		}
	}
	s.users++
	return s.client, s.leave, nil
}

// leave does not wait for a connection: nobody makes one while there is one.
func (s *Store) leave() {
	s.turn <- struct{}{}
	defer func() { <-s.turn }()
	s.users--
	s.tidy()
}

// tidy closes a client that nobody needs. The caller has the turn.
func (s *Store) tidy() {
	if s.client != nil && s.users == 0 && !s.runs {
		_ = s.client.Close() // it says that it was closed
		s.end()
		s.client = nil
	}
}

// hold has the client stay, or not.
func (s *Store) hold(runs bool) {
	s.turn <- struct{}{} // for as long as a login takes, which ends in time
	defer func() { <-s.turn }()
	s.runs = runs
	s.tidy()
}

// dial makes a client, and logs it in where there is a login. end is called
// after the client is closed.
func (s *Store) dial(ctx context.Context) (c *clientv3.Client, end context.CancelFunc, err error) {
	tls, err := s.o.tls()
	if err != nil {
		return nil, nil, err
	}
	life, end := context.WithCancel(context.Background())
	stop := context.AfterFunc(ctx, end) // the login is waited for with ctx
	c, err = clientv3.New(clientv3.Config{
		Endpoints: s.o.Endpoints,
		TLS:       tls,
		Username:  s.o.User, Password: s.o.Password,
		Context: life, DialTimeout: tryFor,
		// gRPC's least. A dead connection is noticed sooner by the renewals.
		DialKeepAliveTime: 10 * time.Second, DialKeepAliveTimeout: tryFor,
		MaxCallRecvMsgSize: maxAnswer,
		MaxUnaryRetries:    attempts,
		Logger:             zap.NewNop(), // what it says comes back as errors
		DialOptions: []grpc.DialOption{
			// gRPC's own pauses grow to two minutes.
			grpc.WithConnectParams(grpc.ConnectParams{
				Backoff:           backoff.Config{BaseDelay: 100 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: time.Second},
				MinConnectTimeout: tryFor,
			}),
			grpc.WithChainUnaryInterceptor(atOnce),
		},
	})
	if !stop() {
		if err == nil {
			_ = c.Close() // it says that it was closed
		}
		err = ctx.Err()
	}
	if err != nil {
		end()
		return nil, nil, err
	}
	return c, end, nil
}

// atOnce lets a call fail with the reason when there is no connection, where
// the client would wait for one and then say that time is up.
func atOnce(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, call grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	return call(ctx, method, req, reply, cc, append(opts, grpc.WaitForReady(false))...)
}

// do calls f with a client. ctx of f ends in time.
func (s *Store) do(ctx context.Context, f func(ctx context.Context, c *clientv3.Client) error) error {
	tctx, cancel := context.WithTimeout(ctx, tryFor)
	defer cancel()
	c, done, err := s.use(tctx)
	if err == nil {
		defer done()
		err = f(tctx, c)
	}
	if err != nil && errors.Is(ctx.Err(), context.Canceled) {
		return ctx.Err()
	}
	return s.explain(err)
}
