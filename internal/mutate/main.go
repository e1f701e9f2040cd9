// Command mutate changes the core a little, many times, and asks its tests
// whether they notice:
//
//	go run ./internal/mutate -n 200 -seed 1
//	go run ./internal/mutate -pkg ./decode -n 70
//	go run ./internal/mutate -at decode/tail.go:63
//
// A mutation is one operator, condition, constant, variable or statement. The
// tree is not touched: changed files take the place of others in the build only
// (-overlay). What does not compile, and what compiles to the same machine code,
// does not count; a test that does not end is one that noticed.
package main

import (
	"cmp"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"
)

func main() { os.Exit(run(os.Args[1:], os.Stdout, os.Stderr)) }

type options struct {
	pkg, at string
	n       int
	seed    uint64
	jobs    int
	atLeast float64
}

func run(args []string, stdout, stderr io.Writer) int {
	var o options
	fs := flag.NewFlagSet("mutate", flag.ContinueOnError)
	fs.SetOutput(stderr)
	fs.StringVar(&o.pkg, "pkg", "", "mutate this package of the core only, e.g. ./decode")
	fs.StringVar(&o.at, "at", "", "try every mutation of file:line (several: separated by commas) instead of random ones")
	fs.IntVar(&o.n, "n", 200, "how many mutations are tried")
	fs.Uint64Var(&o.seed, "seed", 1, "of the choice")
	fs.IntVar(&o.jobs, "j", 2, "mutations tried at once")
	fs.Float64Var(&o.atLeast, "at-least", 0, "exit 1 when fewer per cent are killed")
	if fs.Parse(args) != nil || fs.NArg() > 0 {
		return 2
	}
	share, err := mutate(o, core, stdout)
	switch {
	case err != nil:
		fmt.Fprintf(stderr, "mutate: %v\n", err)
		return 2
	case share < o.atLeast:
		return 1
	}
	return 0
}

// mutate reports how many per cent of the mutations were killed.
func mutate(o options, targets []target, w io.Writer) (share float64, err error) {
	var all []*mutation
	for _, t := range targets {
		if o.pkg != "" && filepath.Clean(o.pkg) != filepath.Clean(t.dir) {
			continue
		}
		l, err := load(t)
		if err != nil {
			return 0, err
		}
		all = append(all, l.mutations()...)
	}
	if o.at == "" {
		all = choose(all, o.n, o.seed)
	} else {
		lines := strings.Split(o.at, ",")
		all = slices.DeleteFunc(all, func(m *mutation) bool { return !slices.Contains(lines, m.where()) || !m.sound() })
	}
	if len(all) == 0 {
		return 0, fmt.Errorf("nothing to mutate: -pkg and -at name one of the core's packages and one of its lines")
	}
	tmp, err := os.MkdirTemp("", "mutate")
	if err != nil {
		return 0, err
	}
	defer os.RemoveAll(tmp)
	benches, err := prepare(all, tmp)
	if err != nil {
		return 0, err
	}
	r := &results{w: w, benches: benches, todo: all, counts: map[string]*[3]int{}}
	var wg sync.WaitGroup
	for i := range o.jobs {
		dir := filepath.Join(tmp, fmt.Sprint(i))
		if err := os.Mkdir(dir, 0o700); err != nil {
			return 0, err
		}
		wg.Go(func() { r.work(dir) })
	}
	wg.Wait()
	if r.err != nil {
		return 0, r.err
	}
	return r.summary(), nil
}

// choose takes n random mutations that compile. Each place has the same chance
// for each sort of mutation: wrong variables would be most of them.
func choose(all []*mutation, n int, seed uint64) []*mutation {
	type place struct {
		src  *source
		from int
		what string
	}
	rnd := rand.New(rand.NewPCG(seed, 0))
	var places []place
	of := map[place][]*mutation{}
	for _, m := range all {
		p := place{m.src, m.from, m.what}
		if of[p] == nil {
			places = append(places, p)
		}
		of[p] = append(of[p], m)
	}
	rnd.Shuffle(len(places), func(i, j int) { places[i], places[j] = places[j], places[i] })
	var some []*mutation
	for _, p := range places {
		if len(some) == n {
			break
		}
		ms := of[p]
		if m := ms[rnd.IntN(len(ms))]; m.sound() {
			some = append(some, m)
		}
	}
	return some
}

// prepare builds the test binaries that mutations of all share, and measures
// the tests.
func prepare(all []*mutation, tmp string) (map[*loaded]*bench, error) {
	benches := map[*loaded]*bench{}
	took := map[string]times{}
	for _, m := range all {
		if benches[m.of] != nil {
			continue
		}
		b := &bench{of: m.of, dirs: append([]string{m.of.dir}, m.of.near...), times: took}
		benches[m.of] = b
		dir := filepath.Join(tmp, b.of.pkg.Name())
		if err := os.Mkdir(dir, 0o700); err != nil {
			return nil, err
		}
		none, err := writeOverlay(dir, nil)
		if err != nil {
			return nil, err
		}
		if b.plain, err = assembly(b.of.dir, none); err != nil {
			return nil, err
		}
		overlay, err := writeOverlay(dir, b.of.clones(slices.DeleteFunc(slices.Clone(all), func(o *mutation) bool { return o.of != m.of })))
		if err != nil {
			return nil, err
		}
		for _, d := range b.dirs {
			bin := filepath.Join(dir, filepath.Base(d)+".test")
			b.bins = append(b.bins, bin)
			if err := build(bin, d, overlay); err != nil {
				return nil, err
			}
			if _, ok := took[d]; ok {
				continue
			}
			if took[d], err = measure(bin, d); err != nil {
				return nil, err
			}
		}
	}
	return benches, nil
}

// results are shared by the workers.
type results struct {
	w       io.Writer
	benches map[*loaded]*bench

	mu     sync.Mutex // guards what follows
	todo   []*mutation
	n      int
	counts map[string]*[3]int
	err    error
}

func (r *results) take() *mutation {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.err != nil || len(r.todo) == 0 {
		return nil
	}
	m := r.todo[0]
	r.todo = r.todo[1:]
	return m
}

func (r *results) work(tmp string) {
	for m := r.take(); m != nil; m = r.take() {
		began := time.Now()
		v, by, err := r.benches[m.of].try(m, tmp)
		r.mu.Lock()
		if err != nil {
			r.err = cmp.Or(r.err, fmt.Errorf("%s: %w", m.where(), err))
		} else {
			r.add(m, v, by, time.Since(began))
		}
		r.mu.Unlock()
	}
}

// add counts and prints a verdict.
func (r *results) add(m *mutation, v verdict, by string, took time.Duration) {
	c := r.counts[m.of.dir]
	if c == nil {
		c = new([3]int)
		r.counts[m.of.dir] = c
	}
	c[v]++
	r.n++
	if by != "" {
		by = " by " + by
	}
	fmt.Fprintf(r.w, "%3d %s %s (%s)%s, %.1f s\n%s", r.n, v, m.where(), m.what, by, took.Seconds(), m.diff())
}

// summary prints the counts, and returns the share that was killed, per cent.
func (r *results) summary() float64 {
	var sum [3]int
	var dirs []string
	for dir, c := range r.counts {
		dirs = append(dirs, dir)
		for v, n := range c {
			sum[v] += n
		}
	}
	slices.Sort(dirs)
	line := func(name string, c *[3]int) float64 {
		share := 100.0
		if n := c[killed] + c[survived]; n > 0 {
			share = 100 * float64(c[killed]) / float64(n)
		}
		fmt.Fprintf(r.w, "%-18s %d of %d killed (%.1f %%), %d survived; %d compile to the same code and do not count\n",
			strings.TrimPrefix(name, "./"), c[killed], c[killed]+c[survived], share, c[survived], c[equivalent])
		return share
	}
	for _, dir := range dirs {
		line(dir, r.counts[dir])
	}
	return line("all", &sum)
}
