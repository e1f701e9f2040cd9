package filepages

import (
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// rssFile is how many KiB of files this process has in memory.
func rssFile(t *testing.T) int {
	t.Helper()
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Fatal(err)
	}
	m := regexp.MustCompile(`RssFile:\s+(\d+) kB`).FindSubmatch(status)
	if m == nil {
		t.Fatal("no RssFile in /proc/self/status")
	}
	kib, err := strconv.Atoi(string(m[1]))
	if err != nil {
		t.Fatal(err)
	}
	return kib
}

// Drop makes the process smaller, and the program goes on.
func TestDrop(t *testing.T) {
	file, err := os.ReadFile("/proc/self/exe") // in the page cache, whole
	if err != nil || len(file) == 0 {
		t.Fatal(err)
	}
	before := rssFile(t)
	if err := Drop(); err != nil {
		t.Fatal(err)
	}
	after := rssFile(t)
	if after >= before {
		t.Errorf("%d KiB of files before, %d after", before, after)
	}
	if got := strings.Repeat("code and constants ", 2); got != "code and constants code and constants " {
		t.Error(got)
	}
	if err := Drop(); err != nil {
		t.Errorf("the second time: %v", err)
	}
}

func TestMappings(t *testing.T) {
	const smaps = `00400000-01402000 r-xp 00000000 fe:00 1234                               /usr/bin/kvrelay
Size:              16392 kB
Rss:               10624 kB
Anonymous:             0 kB
VmFlags: rd ex mr mw me
01402000-02590000 r--p 01002000 fe:00 1234                               /usr/bin/kvrelay
Anonymous:             0 kB
02590000-02640000 rw-p 02190000 fe:00 1234                               /usr/bin/kvrelay
Anonymous:             0 kB
02640000-02650000 r--p 02240000 fe:00 1234                               /usr/bin/kvrelay
Anonymous:             4 kB
c000000000-c000800000 rw-p 00000000 00:00 0
Anonymous:          5744 kB
7f0000000000-7f0000001000 r--p 00000000 fe:00 99                         /usr/bin/kvrelay of another
Anonymous:             0 kB
7f0000002000-7f0000003000 r-xp 00000000 00:00 0                          [vdso]
Anonymous:             0 kB
`
	for file, want := range map[string][]mapping{
		"/usr/bin/kvrelay":            {{0x400000, 0x1402000}, {0x1402000, 0x2590000}},
		"/usr/bin/kvrelay of another": {{0x7f0000000000, 0x7f0000001000}},
		"/usr/bin/another":            nil,
	} {
		if got, err := mappings(strings.NewReader(smaps), file); err != nil || !slices.Equal(got, want) {
			t.Errorf("%s: %x, %v", file, got, err)
		}
	}
	for _, bad := range []string{"0-g r-xp 0 fe:00 1 /a", "x-1 r-xp 0 fe:00 1 /a", "1 r-xp 0 fe:00 1 /a", "2-1 r-xp 0 fe:00 1 /a"} {
		if got, err := mappings(strings.NewReader(bad+"\nAnonymous: 0 kB\n"), "/a"); err == nil {
			t.Errorf("%q: %x", bad, got)
		}
	}
}
