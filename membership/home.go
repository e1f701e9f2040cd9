package membership

import (
	"fmt"
	"net"
	"net/netip"
	"syscall"
)

// callHome dials where a request wants its answer. Whoever reaches RECOVERY_ADDR
// says where that is, so it is no way to addresses that only this host reaches:
// routers are at addresses of networks, private ones included. Loopback is for
// requests that came from this host, or over NATS, which knows who asks.
func callHome(local bool) *net.Dialer {
	return &net.Dialer{Timeout: callTime, Control: func(_, address string, _ syscall.RawConn) error {
		return mayCall(address, local) // with the name looked up, each address in turn
	}}
}

func mayCall(address string, local bool) error {
	at, err := netip.ParseAddrPort(address)
	if err != nil {
		return fmt.Errorf("no address: %w", err)
	}
	why := ""
	switch ip := at.Addr().Unmap(); {
	case at.Port() == 0:
		why = "it has no port"
	case ip.IsUnspecified(), ip.IsMulticast(), ip == netip.AddrFrom4([4]byte{255, 255, 255, 255}):
		why = "it is nobody's"
	case ip.IsLinkLocalUnicast():
		why = "it is link-local, where hosts keep their metadata"
	case ip.IsLoopback() && !local:
		why = "it is loopback, and the request came from another host"
	default:
		return nil
	}
	return fmt.Errorf("no answer is sent to %s: %s", at, why)
}

// fromHere says whether a connection came from this host.
func fromHere(c net.Conn) bool {
	from, ok := c.RemoteAddr().(*net.TCPAddr)
	if !ok {
		return false
	}
	to, ok := c.LocalAddr().(*net.TCPAddr)
	return from.IP.IsLoopback() || ok && from.IP.Equal(to.IP)
}
