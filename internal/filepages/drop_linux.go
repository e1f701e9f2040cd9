package filepages

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Drop unmaps the pages of the program's file that are only read: code and constants.
// What is touched again is mapped again, as at the start, most of it from the page
// cache without reading the file; what only the start needed, which is most of it,
// the kernel may then have back first. It may be called at any time.
func Drop() error {
	file, err := os.Readlink("/proc/self/exe")
	if err != nil {
		return err
	}
	smaps, err := os.Open("/proc/self/smaps")
	if err != nil {
		return err
	}
	defer smaps.Close()
	all, err := mappings(smaps, file)
	if err != nil {
		return err
	}
	for _, m := range all {
		// By number, as there is no slice of code; nothing is written by it.
		if _, _, errno := unix.Syscall(unix.SYS_MADVISE, uintptr(m.from), uintptr(m.to-m.from), unix.MADV_DONTNEED); errno != 0 {
			return fmt.Errorf("madvise of %x–%x: %w", m.from, m.to, errno)
		}
	}
	return nil
}

type mapping struct{ from, to uint64 }

// mappings are those of file in a /proc/PID/smaps, see proc(5), that are nothing but
// the file: read-only, and without pages that differ from it, which relocation (PIE)
// and debuggers make, and which would be lost.
func mappings(smaps io.Reader, file string) ([]mapping, error) {
	var all []mapping
	var now *mapping // of the lines that follow, nil: another's
	sc := bufio.NewScanner(smaps)
	for sc.Scan() {
		fields := strings.Fields(sc.Text())
		switch {
		case len(fields) == 0:
		case fields[0] == "Anonymous:" && now != nil && len(fields) > 1 && fields[1] == "0":
			all = append(all, *now)
		case strings.HasSuffix(fields[0], ":"): // something else of this mapping
		default:
			now = nil
			if len(fields) < 6 || strings.Join(fields[5:], " ") != file || strings.Contains(fields[1], "w") {
				continue
			}
			from, to, _ := strings.Cut(fields[0], "-")
			var m mapping
			var err error
			if m.from, err = strconv.ParseUint(from, 16, 64); err == nil {
				m.to, err = strconv.ParseUint(to, 16, 64)
			}
			if err != nil || m.to <= m.from {
				return nil, fmt.Errorf("cannot read the mapping %q", fields[0])
			}
			now = &m
		}
	}
	return all, sc.Err()
}
