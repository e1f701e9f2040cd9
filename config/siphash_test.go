package config

import (
	"bufio"
	"os"
	"strconv"
	"strings"
	"testing"
)

// TestDynamoWorkerID: the numbers in the table are what Rust 1.95's
// std::collections::hash_map::DefaultHasher gives for each name (a &str), & (2^53 − 1).
// The lengths cover every number of bytes behind the last whole word.
func TestDynamoWorkerID(t *testing.T) {
	f, err := os.Open("testdata/dynamo-worker-ids.tsv")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	rows := 0
	for lines := bufio.NewScanner(f); lines.Scan(); rows++ {
		name, number, _ := strings.Cut(lines.Text(), "\t")
		want, err := strconv.ParseUint(number, 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		if got := DynamoWorkerID(name); got != want {
			t.Errorf("%q: %d, Dynamo has %d", name, got, want)
		}
	}
	if rows < 30 {
		t.Errorf("only %d rows", rows)
	}
}
