package config

import (
	"net"
	"net/netip"
	"strconv"
	"strings"
)

// maxSocketPath is the longest path of a Unix socket that every system takes.
const maxSocketPath = 103

// Endpoint is where one ZMQ socket of an engine is.
type Endpoint struct {
	Listen bool   // the engine dials us: its PUB connects (tcp only)
	Host   string // tcp: name or address, IPv6 without brackets; Listen: * for any
	Port   int    // tcp: 1…65535
	Path   string // ipc: path of the socket, or @name in the abstract namespace
}

// ParseEndpoint reads tcp://host:port, ipc://path or listen:tcp://host:port.
// The error says what would be right.
func ParseEndpoint(text string) (Endpoint, error) {
	rest, listen := strings.CutPrefix(text, "listen:")
	switch {
	case strings.HasPrefix(rest, "tcp://"):
		return parseTCP(rest[len("tcp://"):], listen)
	case strings.HasPrefix(rest, "ipc://") && !listen:
		path := rest[len("ipc://"):]
		if path == "" || path == "@" {
			return Endpoint{}, wantf("a path after ipc://, such as ipc:///run/kv/events.sock")
		}
		if len(path) > maxSocketPath || strings.ContainsRune(path, 0) {
			return Endpoint{}, wantf("a socket path of at most %d bytes", maxSocketPath)
		}
		return Endpoint{Path: path}, nil
	case strings.HasPrefix(rest, "inproc://"):
		return Endpoint{}, wantf("tcp://host:port or ipc://path: inproc:// is inside the engine's own process")
	}
	return Endpoint{}, wantf("tcp://host:port, ipc://path or listen:tcp://host:port")
}

func parseTCP(addr string, listen bool) (Endpoint, error) {
	host, portText, err := net.SplitHostPort(addr)
	if err != nil {
		return Endpoint{}, wantf("tcp://host:port (IPv6: tcp://[::1]:5557)")
	}
	port, err := strconv.ParseUint(portText, 10, 16)
	if err != nil || port == 0 {
		return Endpoint{}, wantf("a port from 1 to 65535")
	}
	bare, _, _ := strings.Cut(host, "%") // IPv6 zone
	ip, ipErr := netip.ParseAddr(bare)
	switch {
	case strings.Contains(host, ":") && ipErr != nil:
		return Endpoint{}, wantf("an IPv6 address in the brackets")
	case host == "":
		return Endpoint{}, wantf("a host before the port")
	case host != "*" && strings.Contains(host, "*"):
		return Endpoint{}, wantf("a host without *")
	case host != "*" && ipErr != nil && !isHost(host):
		return Endpoint{}, wantf("a host before the port, without characters that none has")
	case !listen && (host == "*" || ipErr == nil && ip.IsUnspecified()):
		return Endpoint{}, wantf("the address that the engine is reached at, such as tcp://127.0.0.1:%d: %s is one to bind", port, host)
	}
	return Endpoint{Listen: listen, Host: host, Port: int(port)}, nil
}

// IsIPC says whether e is a Unix socket.
func (e Endpoint) IsIPC() bool { return e.Path != "" }

// Address is the endpoint without listen: — tcp://host:port or ipc://path.
func (e Endpoint) Address() string {
	if e.IsIPC() {
		return "ipc://" + e.Path
	}
	return "tcp://" + net.JoinHostPort(e.Host, strconv.Itoa(e.Port))
}

// String is the endpoint as it would be written in ENDPOINTS.
func (e Endpoint) String() string {
	if e.Listen {
		return "listen:" + e.Address()
	}
	return e.Address()
}

// forRank is the endpoint of a rank where e is the engine's base endpoint:
// vLLM and SGLang add the data-parallel rank's number to the port they are given.
func (e Endpoint) forRank(rank int) (Endpoint, error) {
	if e.IsIPC() {
		return Endpoint{}, wantf("one entry per rank: a path does not count up")
	}
	if e.Port+rank > 65535 {
		return Endpoint{}, wantf("a port of at most %d: rank %d is at port + %d", 65535-rank, rank, rank)
	}
	e.Port += rank
	return e, nil
}

// place is e in a form that two spellings of one socket share, for finding
// endpoints that are named twice.
func (e Endpoint) place() string {
	if e.IsIPC() {
		return e.String()
	}
	host := strings.ToLower(e.Host)
	if host == "localhost" {
		host = "127.0.0.1"
	}
	if ip, err := netip.ParseAddr(host); err == nil {
		host = ip.Unmap().String()
	}
	e.Host = host
	return e.String()
}

// Endpoints is a list of endpoints as written.
type Endpoints []Endpoint

// Set reads a comma separated list.
func (l *Endpoints) Set(text string) error {
	items, err := splitList(text)
	if err != nil {
		return err
	}
	list := make(Endpoints, len(items))
	for i, item := range items {
		if list[i], err = ParseEndpoint(item); err != nil {
			return inEntry(i, len(items), err)
		}
	}
	*l = list
	return nil
}

// inEntry names the entry of a list that err is about, when there are several.
func inEntry(i, n int, err error) error {
	if n == 1 {
		return err
	}
	return wantf("%s in entry %d", strings.TrimPrefix(err.Error(), "want "), i+1)
}

// String is the list as it would be written.
func (l Endpoints) String() string {
	texts := make([]string, len(l))
	for i, e := range l {
		texts[i] = e.String()
	}
	return strings.Join(texts, ",")
}

// ReplayEndpoints are endpoints of replay ROUTERs, or the wish to have none.
type ReplayEndpoints struct {
	None bool // "none": run without replay whatever the engine offers
	List Endpoints
}

// Set reads a comma separated list, or none.
func (r *ReplayEndpoints) Set(text string) error {
	if strings.EqualFold(strings.TrimSpace(text), "none") {
		*r = ReplayEndpoints{None: true}
		return nil
	}
	var list Endpoints
	if err := list.Set(text); err != nil {
		return err
	}
	for i, e := range list {
		if e.Listen {
			return inEntry(i, len(list), wantf("no listen: here, since engines bind their replay socket"))
		}
	}
	*r = ReplayEndpoints{List: list}
	return nil
}

// String is the value as it would be written.
func (r ReplayEndpoints) String() string {
	if r.None {
		return "none"
	}
	return r.List.String()
}

// Source is one rank's endpoints.
type Source struct {
	Rank      int
	Live      Endpoint
	Replay    Endpoint // meaningful when HasReplay
	HasReplay bool
}

// IsStatic says whether the endpoints come from ENDPOINTS, not from discovery.
func (c *Config) IsStatic() bool {
	return c.Engine == EngineStatic || c.Engine == EngineAuto && len(c.Endpoints) > 0
}

// Sources are the static engine's ranks, lowest first; nil with discovery.
func (c *Config) Sources() []Source {
	if !c.IsStatic() {
		return nil
	}
	live, err := c.perRank(c.Endpoints)
	if err != nil {
		return nil // Load has refused such settings
	}
	replay, err := c.perRank(c.ReplayEndpoints.List)
	if err != nil {
		return nil
	}
	sources := make([]Source, len(live))
	for i, e := range live {
		sources[i] = Source{Rank: c.FirstRank + i, Live: e}
		if i < len(replay) {
			sources[i].Replay, sources[i].HasReplay = replay[i], true
		}
	}
	return sources
}

// perRank spreads a list over the ranks: none, one each, or one base for all.
func (c *Config) perRank(list Endpoints) ([]Endpoint, error) {
	if len(list) == 0 || len(list) == c.Ranks {
		return list, nil
	}
	if len(list) > 1 {
		return nil, wantf("one entry, or one for each of the %d ranks", c.Ranks)
	}
	// The highest rank first: its error names the bound of all.
	if _, err := list[0].forRank(c.FirstRank + c.Ranks - 1); err != nil {
		return nil, err
	}
	all := make([]Endpoint, c.Ranks)
	for i := range all {
		all[i], _ = list[0].forRank(c.FirstRank + i)
	}
	return all, nil
}
