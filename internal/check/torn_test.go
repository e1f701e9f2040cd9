package check

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kvrelay/kvrelay/convert"
)

// What a killed recorder left is reported on, up to the line that has no end.
func TestTornRecording(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x.jsonl")
	text := "{}\n" + `{"frames":["","0000000000000000","90"]}` + "\n" + `{"frames":["","00000000`
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	r, err := File(path, convert.Config{})
	if err != nil {
		t.Fatal(err)
	}
	if len(r.Doubts) != 1 || !strings.Contains(r.Doubts[0], "x.jsonl:3: the capture ends here, in the middle of a line") || r.Streams[0].Numbers.Applied != 1 {
		t.Errorf("doubts %q, numbers %+v", r.Doubts, r.Streams[0].Numbers)
	}
}
