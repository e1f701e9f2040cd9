package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// verdict is what became of a mutation.
type verdict uint8

const (
	killed     verdict = iota
	survived           // no test noticed
	equivalent         // the compiler makes the same code of it
)

var verdicts = [...]string{"killed", "SURVIVED", "equivalent"}

func (v verdict) String() string { return verdicts[v] }

const (
	// slowTest is how long a test takes that runs only after all others have
	// noticed nothing.
	slowTest = time.Second
	// maxMemory (KiB of address space) ends a mutant that allocates without end.
	maxMemory = 6 << 20
)

// times is how long a package's tests take.
type times struct {
	slow         string        // regexp of the slow ones; empty: none
	max, maxSlow time.Duration // of CPU, for the others and for these, before they are stopped
}

var passed = regexp.MustCompile(`(?m)^--- PASS: (\S+) \((\d+\.\d+)s\)`)

// measure runs a test binary on unchanged code.
func measure(bin, dir string) (times, error) {
	out, cpu, err := runTests(bin, dir, 0, time.Hour, "-test.v")
	if err != nil {
		return times{}, fmt.Errorf("the tests of %s fail on unchanged code: %w\n%s", dir, err, out)
	}
	var slow []string
	var all, slowFor time.Duration
	for _, m := range passed.FindAllStringSubmatch(string(out), -1) {
		took, err := time.ParseDuration(m[2] + "s")
		if all += took; err == nil && took >= slowTest {
			slow = append(slow, regexp.QuoteMeta(m[1]))
			slowFor += took
		}
	}
	// CPU time, which a busy machine does not make longer; twice as much for code
	// that a mutation made slower.
	part := time.Duration(float64(cpu) * slowFor.Seconds() / max(all.Seconds(), 0.001))
	t := times{max: 5*time.Second + 2*(cpu-part), maxSlow: 5*time.Second + 2*part}
	if slow != nil {
		t.slow = "^(" + strings.Join(slow, "|") + ")$"
	}
	return t, nil
}

// build compiles a package's tests with files in the place of others.
func build(bin, dir, overlay string) error {
	out, err := exec.Command("go", "test", "-c", "-p", "1", "-vet=off", "-overlay", overlay, "-o", bin, dir).CombinedOutput()
	if err != nil {
		return fmt.Errorf("building the tests of %s: %w\n%s", dir, err, out)
	}
	return nil
}

// runTests runs a test binary, its short tests only, in its package's folder,
// with bounded CPU time and memory.
func runTests(bin, dir string, id int, limit time.Duration, args ...string) (out []byte, cpu time.Duration, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Hour)
	defer cancel()
	a := append([]string{"-c", `ulimit -v "$0" && ulimit -t "$1" && shift && exec "$@"`, strconv.Itoa(maxMemory),
		strconv.Itoa(int(limit.Seconds() + 1)), bin, "-test.failfast", "-test.short"}, args...)
	a = append(a, flags[dir]...)
	cmd := exec.CommandContext(ctx, "sh", a...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), chosen+"="+strconv.Itoa(id))
	cmd.WaitDelay = 5 * time.Second
	out, err = cmd.CombinedOutput()
	if cmd.ProcessState != nil {
		cpu = cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()
	}
	if err != nil && cpu >= limit {
		err = fmt.Errorf("taking more than %s of CPU", limit.Round(time.Second))
		out = nil
	}
	return out, cpu, err
}

// notice runs a package's tests and names what noticed the mutation; "": none did.
func (t times) notice(bin, dir string, id int) string {
	var out []byte
	var err error
	if t.slow == "" {
		out, _, err = runTests(bin, dir, id, t.max)
	} else if out, _, err = runTests(bin, dir, id, t.max, "-test.skip", t.slow); err == nil {
		out, _, err = runTests(bin, dir, id, t.maxSlow, "-test.run", t.slow)
	}
	if err == nil {
		return ""
	}
	return by(out, err)
}

var failed = regexp.MustCompile(`(?m)^\s*--- FAIL: (\S+)`)

func by(out []byte, err error) string {
	if all := failed.FindAllSubmatch(out, -1); all != nil {
		return string(all[len(all)-1][1])
	}
	for line := range strings.Lines(string(out)) {
		if strings.HasPrefix(line, "panic:") || strings.HasPrefix(line, "fatal error:") {
			return strings.TrimSpace(line)
		}
	}
	return err.Error()
}

// bench is where the mutations of one package are tried.
type bench struct {
	of    *loaded
	dirs  []string         // whose tests run, in this order
	bins  []string         // their test binaries, with all clones; made when first needed
	times map[string]times // of all packages
	plain string           // the unchanged package's assembly
}

// try finds out what becomes of a mutation, in a folder of its own.
func (b *bench) try(m *mutation, tmp string) (v verdict, by string, err error) {
	overlay, err := writeOverlay(tmp, map[string][]byte{m.src.path: m.apply()})
	if err != nil {
		return 0, "", err
	}
	for i, dir := range b.dirs {
		bin := b.bins[i]
		if m.id == 0 {
			bin = filepath.Join(tmp, "alone.test")
			if err := build(bin, dir, overlay); err != nil {
				return 0, "", err
			}
		}
		if by = b.times[dir].notice(bin, dir, m.id); by != "" {
			return killed, by, nil
		}
		if i > 0 {
			continue
		}
		// Before others' tests take their time: is it a change at all?
		if is, err := assembly(b.of.dir, overlay); err != nil {
			return 0, "", err
		} else if is == b.plain {
			return equivalent, "", nil
		}
	}
	return survived, "", nil
}

// writeOverlay writes files, and for -overlay a list that puts them in place.
func writeOverlay(tmp string, files map[string][]byte) (string, error) {
	replace := map[string]string{}
	for path, text := range files {
		file := filepath.Join(tmp, filepath.Base(path))
		replace[path] = file
		if err := os.WriteFile(file, text, 0o600); err != nil {
			return "", err
		}
	}
	j, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		return "", err
	}
	overlay := filepath.Join(tmp, "overlay.json")
	return overlay, os.WriteFile(overlay, j, 0o600)
}

// assembly is a digest of the machine code and data that a package compiles to.
func assembly(dir, overlay string) (string, error) {
	out, err := exec.Command("go", "build", "-p", "1", "-gcflags=-S -dwarf=false", "-overlay", overlay, dir).CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("compiling %s: %w\n%s", dir, err, out[:min(len(out), 1000)])
	}
	if bytes.Count(out, []byte("\n")) < 100 {
		return "", fmt.Errorf("compiling %s: no listing", dir)
	}
	code := sha256.New()
	debug := false
	for line := range bytes.Lines(out) {
		if line[0] != '\t' && line[0] != ' ' { // a symbol begins; what debuggers read is no code
			debug = bytes.Contains(line, []byte(" SDWARF"))
		}
		if !debug {
			code.Write(line)
		}
	}
	return fmt.Sprintf("%x", code.Sum(nil)), nil
}
