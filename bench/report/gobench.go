package main

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
)

// bench is one benchmark with its values, by unit, of all runs.
type bench struct {
	name   string
	units  []string // in the order in which they came
	values map[string][]float64
}

// parseBench reads what `go test -bench` prints
// (https://go.googlesource.com/proposal/+/master/design/14313-benchmark-format.md).
// Lines of another form are passed over.
func parseBench(text string) (all []*bench) {
	byName := map[string]*bench{}
	for line := range strings.Lines(text) {
		f := strings.Fields(line)
		if len(f) < 4 || len(f)%2 != 0 || !strings.HasPrefix(f[0], "Benchmark") {
			continue
		}
		if _, err := strconv.ParseUint(f[1], 10, 64); err != nil {
			continue
		}
		name := strings.TrimPrefix(f[0], "Benchmark")
		if i := strings.LastIndexByte(name, '-'); i > 0 { // the number of processors
			if _, err := strconv.ParseUint(name[i+1:], 10, 32); err == nil {
				name = name[:i]
			}
		}
		b := byName[name]
		if b == nil {
			b = &bench{name: name, values: map[string][]float64{}}
			byName[name] = b
			all = append(all, b)
		}
		for i := 2; i < len(f); i += 2 {
			v, err := strconv.ParseFloat(f[i], 64)
			if err != nil {
				break
			}
			if b.values[f[i+1]] == nil {
				b.units = append(b.units, f[i+1])
			}
			b.values[f[i+1]] = append(b.values[f[i+1]], v)
		}
	}
	return all
}

// benchTable prints benchmarks, each with its units.
func benchTable(w io.Writer, all []*bench) {
	fmt.Fprint(w, "| benchmark | figures |\n|---|---|\n")
	for _, b := range all {
		var cells []string
		for _, unit := range b.units {
			cells = append(cells, spread(b.values[unit], "")+" "+unit)
		}
		fmt.Fprintf(w, "| %s | %s |\n", b.name, strings.Join(cells, ", "))
	}
}

// spread is the median, and the least and the largest where they differ.
func spread(values []float64, unit string) string {
	v := slices.Sorted(slices.Values(values))
	if len(v) == 0 {
		return "—"
	}
	text := short(median(v)) + unit
	if low, high := short(v[0]), short(v[len(v)-1]); low != high {
		text += " (" + low + " – " + high + ")"
	}
	return text
}

// median is that of sorted values.
func median(v []float64) float64 {
	return (v[(len(v)-1)/2] + v[len(v)/2]) / 2
}

// short has three digits that count, or all before the point.
func short(v float64) string {
	if v >= 100 || v <= -100 {
		return strconv.FormatFloat(v, 'f', 0, 64)
	}
	return strconv.FormatFloat(v, 'g', 3, 64)
}

var errNothing = errors.New("no benchmark of the form Name/shape=…/lib=… was read")

// compared prints a table with a row for each shape and a column for each
// library, first the one that the others are compared with.
func compared(r io.Reader, w io.Writer) error {
	const most = 16 << 20 // bytes; what comes behind is not read
	text, err := io.ReadAll(io.LimitReader(r, most))
	if err != nil {
		return err
	}
	cells := map[[2]string]float64{}
	var rows, libs []string
	for _, b := range parseBench(string(text)) {
		head, lib, ok := strings.Cut(b.name, "/lib=")
		ns := b.values["ns/op"]
		if !ok || len(ns) == 0 {
			continue
		}
		row := strings.Replace(head, "/shape=", " ", 1)
		if !slices.Contains(rows, row) {
			rows = append(rows, row)
		}
		if !slices.Contains(libs, lib) {
			libs = append(libs, lib)
		}
		slices.Sort(ns)
		cells[[2]string{row, lib}] = median(ns)
	}
	if len(rows) == 0 {
		return errNothing
	}
	fmt.Fprintf(w, "| | %s |\n|---%s|\n", strings.Join(libs, " | "), strings.Repeat("|---", len(libs)))
	for _, row := range rows {
		fmt.Fprintf(w, "| %s |", row)
		base := cells[[2]string{row, libs[0]}]
		for i, lib := range libs {
			switch v, ok := cells[[2]string{row, lib}]; {
			case !ok:
				fmt.Fprint(w, " — |")
			case i == 0 || base == 0:
				fmt.Fprintf(w, " %s µs |", short(v/1e3))
			default:
				fmt.Fprintf(w, " %s µs, × %s |", short(v/1e3), short(v/base))
			}
		}
		fmt.Fprintln(w)
	}
	return nil
}
