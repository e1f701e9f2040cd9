package main

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/parser"
	"go/types"
	"path/filepath"
	"strings"
)

// Compiling and linking a test binary takes longer than most mutants live. So
// all mutations that lie in functions share one: of each function there is a
// copy for each of its mutations, and the function itself calls the one that
// the environment names.

// chosen is the environment's variable that names a mutation, from 1; 0 or
// nothing is the code as it stands.
const chosen = "MUTATE_ID"

const chooser = `package %s

import (
	"os"
	"strconv"
)

var mutant__ = func() int { n, _ := strconv.Atoi(os.Getenv(%q)); return n }()
`

// sound reports whether a mutation compiles.
func (m *mutation) sound() bool {
	fset := m.of.fset
	file, err := parser.ParseFile(fset, m.src.path, m.apply(), parser.SkipObjectResolution)
	if err != nil {
		return false
	}
	all := make([]*ast.File, 0, len(m.of.all))
	for _, f := range m.of.all {
		if f == m.src.file {
			f = file
		}
		all = append(all, f)
	}
	ok := true
	conf := types.Config{Importer: m.of.imports, Error: func(error) { ok = false }}
	conf.Check(m.of.pkg.Path(), fset, all, nil)
	return ok
}

// clones returns the package's changed files by path, with a copy of a function
// for each of the mutations in it, and gives these mutations their ids. One in a
// declaration of another sort, or in a signature, keeps id 0: it needs a build
// of its own.
func (l *loaded) clones(ms []*mutation) map[string][]byte {
	files := map[string][]byte{}
	id := 0
	for i := range l.files {
		src := &l.files[i]
		var out bytes.Buffer
		done := 0 // offset in src.text of what comes next
		for _, d := range src.file.Decls {
			fn, ok := d.(*ast.FuncDecl)
			if !ok || fn.Body == nil || fn.Recv == nil && fn.Name.Name == "init" {
				continue
			}
			from, name, body, end := l.offset(fn.Pos()), l.offset(fn.Name.End()), l.offset(fn.Body.Pos()), l.offset(fn.End())
			var ids []int
			var copies bytes.Buffer
			for _, m := range ms {
				if m.src != src || m.from < body || m.to > end {
					continue
				}
				id++
				m.id = id
				ids = append(ids, id)
				fmt.Fprintf(&copies, "\n\n%s__%d%s%s%s", src.text[from:name], id, src.text[name:m.from], m.new, src.text[m.to:end])
			}
			if ids == nil {
				continue
			}
			out.Write(src.text[done:from])
			out.WriteString(l.dispatcher(src, fn, ids))
			fmt.Fprintf(&out, "\n\n%s__0%s", src.text[from:name], src.text[name:end])
			out.Write(copies.Bytes())
			done = end
		}
		if done > 0 {
			out.Write(src.text[done:])
			files[src.path] = out.Bytes()
		}
	}
	if id > 0 {
		path := filepath.Join(filepath.Dir(l.files[0].path), "mutant__.go")
		files[path] = fmt.Appendf(nil, chooser, l.pkg.Name(), chosen)
	}
	return files
}

// dispatcher is a function of fn's name that calls the chosen copy of it.
func (l *loaded) dispatcher(src *source, fn *ast.FuncDecl, ids []int) string {
	text := func(n ast.Node) string { return string(src.text[l.offset(n.Pos()):l.offset(n.End())]) }
	var params, args []string
	for _, f := range fn.Type.Params.List {
		for range max(1, len(f.Names)) {
			name := fmt.Sprintf("p%d__", len(args))
			params = append(params, name+" "+text(f.Type))
			if _, ok := f.Type.(*ast.Ellipsis); ok {
				name += "..."
			}
			args = append(args, name)
		}
	}
	var results []string
	if fn.Type.Results != nil {
		for _, f := range fn.Type.Results.List {
			for range max(1, len(f.Names)) {
				results = append(results, text(f.Type))
			}
		}
	}
	head, call, ret := "func ", fn.Name.Name, ""
	if fn.Recv != nil {
		head += "(r__ " + text(fn.Recv.List[0].Type) + ") "
		call = "r__." + call
	}
	head += fn.Name.Name
	types := ""
	if fn.Type.TypeParams != nil {
		head += text(fn.Type.TypeParams)
		var names []string
		for _, f := range fn.Type.TypeParams.List {
			for _, n := range f.Names {
				names = append(names, n.Name)
			}
		}
		types = "[" + strings.Join(names, ", ") + "]"
	}
	if results != nil {
		ret = "return "
	}
	one := func(id int) string {
		return fmt.Sprintf("%s%s__%d%s(%s)", ret, call, id, types, strings.Join(args, ", "))
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%s(%s) (%s) {\n\tswitch mutant__ {\n", head, strings.Join(params, ", "), strings.Join(results, ", "))
	for _, id := range ids {
		fmt.Fprintf(&b, "\tcase %d:\n\t\t%s\n", id, one(id))
	}
	fmt.Fprintf(&b, "\tdefault:\n\t\t%s\n\t}\n}", one(0))
	return b.String()
}
