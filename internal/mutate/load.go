package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
)

// target is a package that is mutated.
type target struct {
	dir    string
	except []string // files that are no part of the core
	// near are packages whose tests run when the package's own notice nothing.
	near []string
}

// flags make the tests of a package short.
var flags = map[string][]string{"./replay": {"-seeds", "300", "-first"}}

// core is what decides which router events come of which bytes.
var core = []target{
	{dir: "./decode", near: []string{"./convert"}},
	{dir: "./convert"},
	{dir: "./replay", except: []string{"client.go"}},
	{dir: "./internal/msgpack", near: []string{"./decode", "./convert"}},
}

// source is one parsed file.
type source struct {
	name string // from the project's root
	path string // absolute
	text []byte
	file *ast.File
}

// loaded is a target, parsed and type-checked.
type loaded struct {
	target
	fset    *token.FileSet
	files   []source    // to be mutated
	all     []*ast.File // of the package
	info    *types.Info
	pkg     *types.Package
	imports types.Importer
}

func (l *loaded) offset(p token.Pos) int { return l.fset.Position(p).Offset }

type listed struct {
	ImportPath, Dir, Export string
	GoFiles                 []string
	DepOnly                 bool
}

// load reads a target. Its imports come from the compiler's export data.
func load(t target) (*loaded, error) {
	cmd := exec.Command("go", "list", "-export", "-deps", "-json=ImportPath,Dir,Export,GoFiles,DepOnly", t.dir)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("listing %s: %w", t.dir, err)
	}
	exports := map[string]string{}
	var self listed
	for dec := json.NewDecoder(bytes.NewReader(out)); ; {
		var p listed
		if err := dec.Decode(&p); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return nil, fmt.Errorf("reading go list's answer: %w", err)
		}
		exports[p.ImportPath] = p.Export
		if !p.DepOnly {
			self = p
		}
	}
	l := &loaded{target: t, fset: token.NewFileSet(), info: &types.Info{
		Uses: map[*ast.Ident]types.Object{}, Selections: map[*ast.SelectorExpr]*types.Selection{},
		Types: map[ast.Expr]types.TypeAndValue{}, Defs: map[*ast.Ident]types.Object{},
	}}
	for _, name := range self.GoFiles {
		s := source{name: filepath.Join(t.dir, name), path: filepath.Join(self.Dir, name)}
		if s.text, err = os.ReadFile(s.path); err != nil {
			return nil, err
		}
		if s.file, err = parser.ParseFile(l.fset, s.path, s.text, parser.ParseComments); err != nil {
			return nil, err
		}
		l.all = append(l.all, s.file)
		if !slices.Contains(t.except, name) && !ast.IsGenerated(s.file) {
			l.files = append(l.files, s)
		}
	}
	l.imports = importer.ForCompiler(l.fset, "gc", func(path string) (io.ReadCloser, error) {
		return os.Open(exports[path])
	})
	conf := types.Config{Importer: l.imports}
	if l.pkg, err = conf.Check(self.ImportPath, l.fset, l.all, l.info); err != nil {
		return nil, fmt.Errorf("checking %s: %w", t.dir, err)
	}
	return l, nil
}
