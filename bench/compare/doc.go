// Package compare measures kvrelay's decoder and encoder beside the usual msgpack
// libraries, on the same bytes. It is a module of its own, so that kvrelay does
// not depend on what it is compared with.
package compare
