package integration

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"go.uber.org/goleak"
)

// kvrelayBinary is the program under test, built once.
var kvrelayBinary string

func TestMain(m *testing.M) {
	os.Exit(run(m))
}

func run(m *testing.M) int {
	if settings := os.Getenv(natsProcess); settings != "" {
		return serveNATS(settings)
	}
	dir, err := os.MkdirTemp("", "kvrelay-integration-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	kvrelayBinary = filepath.Join(dir, "kvrelay")
	args := []string{"build", "-o", kvrelayBinary}
	if raceEnabled {
		args = append(args, "-race")
	}
	if out, err := exec.Command("go", append(args, "../cmd/kvrelay")...).CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "building kvrelay: %v\n%s", err, out)
		return 1
	}
	code := m.Run()
	if code == 0 {
		if err := goleak.Find(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
	}
	return code
}
