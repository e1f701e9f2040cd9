package main

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/token"
	"go/types"
	"strconv"
	"strings"
)

// mutation is one small change of one file: text[from:to] becomes new.
type mutation struct {
	of       *loaded
	src      *source
	what     string
	from, to int
	new      string
	id       int // among its package's clones; 0: it is built alone
}

// line is the 1-based line that the mutation begins on.
func (m *mutation) line() int { return 1 + bytes.Count(m.src.text[:m.from], []byte("\n")) }

func (m *mutation) where() string { return fmt.Sprintf("%s:%d", m.src.name, m.line()) }

// apply is the mutated file. It has as many lines as before: what is dropped
// leaves its line breaks behind, so that code the change does not reach stays
// the same to the compiler, positions included.
func (m *mutation) apply() []byte {
	old := m.src.text[m.from:m.to]
	lines := bytes.Count(old, []byte("\n")) - strings.Count(m.new, "\n")
	var out []byte
	out = append(out, m.src.text[:m.from]...)
	out = append(out, m.new...)
	out = append(out, strings.Repeat("\n", max(0, lines))...)
	return append(out, m.src.text[m.to:]...)
}

// diff shows the changed lines.
func (m *mutation) diff() string {
	begin := bytes.LastIndexByte(m.src.text[:m.from], '\n') + 1
	end := len(m.src.text)
	if i := bytes.IndexByte(m.src.text[m.to:], '\n'); i >= 0 {
		end = m.to + i
	}
	var b strings.Builder
	side := func(mark, text string) {
		for line := range strings.SplitSeq(text, "\n") {
			if strings.TrimSpace(line) != "" {
				fmt.Fprintf(&b, "\t%s %s\n", mark, line)
			}
		}
	}
	side("-", string(m.src.text[begin:end]))
	side("+", string(m.src.text[begin:m.from])+m.new+string(m.src.text[m.to:end]))
	return b.String()
}

// finder collects the mutations of one file.
type finder struct {
	of    *loaded
	src   *source
	found []*mutation
	arid  map[ast.Node]bool // not to be mutated
}

// mutations are all small changes of a package that are worth trying. Many do
// not compile; the caller finds out.
func (l *loaded) mutations() []*mutation {
	var all []*mutation
	for i := range l.files {
		f := finder{of: l, src: &l.files[i], arid: map[ast.Node]bool{}}
		for _, d := range f.src.file.Decls {
			ast.Inspect(d, f.visit)
		}
		all = append(all, f.found...)
	}
	return all
}

func (f *finder) offset(p token.Pos) int { return f.of.offset(p) }

func (f *finder) text(n ast.Node) string {
	return string(f.src.text[f.offset(n.Pos()):f.offset(n.End())])
}

func (f *finder) add(what string, from, to token.Pos, text string) {
	f.found = append(f.found, &mutation{of: f.of, src: f.src, what: what, from: f.offset(from), to: f.offset(to), new: text})
}

func (f *finder) replace(what string, n ast.Node, text string) { f.add(what, n.Pos(), n.End(), text) }

func (f *finder) drop(n ast.Node) { f.replace("statement dropped", n, "") }

// operators are what each operator is mistaken for.
var operators = map[token.Token][]token.Token{
	token.LSS: {token.LEQ, token.GEQ}, token.LEQ: {token.LSS, token.GTR},
	token.GTR: {token.GEQ, token.LEQ}, token.GEQ: {token.GTR, token.LSS},
	token.EQL: {token.NEQ}, token.NEQ: {token.EQL},
	token.ADD: {token.SUB}, token.SUB: {token.ADD}, token.MUL: {token.QUO}, token.QUO: {token.MUL}, token.REM: {token.QUO},
	token.AND: {token.OR}, token.OR: {token.AND}, token.XOR: {token.AND}, token.AND_NOT: {token.AND},
	token.SHL: {token.SHR}, token.SHR: {token.SHL},
	token.LAND: {token.LOR}, token.LOR: {token.LAND},
	token.ADD_ASSIGN: {token.SUB_ASSIGN}, token.SUB_ASSIGN: {token.ADD_ASSIGN}, token.MUL_ASSIGN: {token.QUO_ASSIGN},
	token.QUO_ASSIGN: {token.MUL_ASSIGN}, token.OR_ASSIGN: {token.AND_ASSIGN}, token.AND_NOT_ASSIGN: {token.OR_ASSIGN},
	token.INC: {token.DEC}, token.DEC: {token.INC},
	token.BREAK: {token.CONTINUE}, token.CONTINUE: {token.BREAK},
}

func (f *finder) operator(what string, at token.Pos, op token.Token) {
	for _, other := range operators[op] {
		f.add(what, at, at+token.Pos(len(op.String())), other.String())
	}
}

func (f *finder) visit(n ast.Node) bool {
	if f.arid[n] {
		return false
	}
	switch n := n.(type) {
	case *ast.ImportSpec, *ast.CommentGroup:
		return false
	case *ast.BinaryExpr:
		f.operator("operator", n.OpPos, n.Op)
		if n.Op == token.LAND || n.Op == token.LOR {
			f.replace("left side only", n, f.text(n.X))
			f.replace("right side only", n, f.text(n.Y))
		}
	case *ast.UnaryExpr:
		if n.Op == token.NOT {
			f.replace("negation dropped", n, f.text(n.X))
		}
	case *ast.BasicLit:
		f.literal(n)
	case *ast.Ident:
		f.ident(n)
	case *ast.SelectorExpr:
		f.field(n)
	case *ast.IfStmt:
		f.replace("condition negated", n.Cond, "!("+f.text(n.Cond)+")")
		if n.Else == nil {
			f.drop(n)
		}
	case *ast.ForStmt:
		if n.Cond != nil {
			f.replace("condition negated", n.Cond, "!("+f.text(n.Cond)+")")
		}
	case *ast.CaseClause:
		if n.List != nil && len(n.Body) > 0 {
			f.add("case's body dropped", n.Body[0].Pos(), n.End(), "")
		}
	case *ast.ExprStmt:
		f.drop(n)
	case *ast.DeferStmt:
		f.drop(n)
	case *ast.AssignStmt:
		f.operator("operator", n.TokPos, n.Tok)
		if n.Tok != token.DEFINE {
			f.drop(n)
		}
	case *ast.IncDecStmt:
		f.operator("operator", n.TokPos, n.Tok)
		f.drop(n)
	case *ast.BranchStmt:
		if n.Label == nil {
			f.operator("jump", n.TokPos, n.Tok)
		}
		f.drop(n)
	case *ast.ReturnStmt:
		f.drop(n)
		f.unread(n)
	case *ast.CallExpr:
		if fun, ok := n.Fun.(*ast.Ident); ok && fun.Name == "make" && len(n.Args) == 3 {
			f.arid[n.Args[2]] = true // room to grow changes nothing that can be seen
		}
	case *ast.BlockStmt:
		f.neighbors(n)
	}
	return true
}

// unread leaves the constants alone that are returned beside a false: by this
// project's contract nobody reads them.
func (f *finder) unread(n *ast.ReturnStmt) {
	last := len(n.Results) - 1
	if last < 1 {
		return
	}
	if ok, isName := n.Results[last].(*ast.Ident); !isName || ok.Name != "false" {
		return
	}
	for _, r := range n.Results[:last] {
		if f.of.info.Types[r].Value != nil || f.of.info.Types[r].IsNil() {
			f.arid[r] = true
		}
	}
}

// neighbors swaps the bodies of neighbouring cases, and drops an if's else.
func (f *finder) neighbors(block *ast.BlockStmt) {
	for i, s := range block.List {
		if s, ok := s.(*ast.IfStmt); ok && s.Else != nil {
			f.add("else dropped", s.Body.End(), s.Else.End(), "")
		}
		a, ok := s.(*ast.CaseClause)
		if !ok || i+1 == len(block.List) || len(a.Body) == 0 {
			continue
		}
		if b := block.List[i+1].(*ast.CaseClause); len(b.Body) > 0 {
			from, to := f.offset(a.Body[0].Pos()), f.offset(b.End())
			between := string(f.src.text[f.offset(a.End()):f.offset(b.Body[0].Pos())])
			text := string(f.src.text[f.offset(b.Body[0].Pos()):to]) + between +
				string(f.src.text[from:f.offset(a.End())])
			f.found = append(f.found, &mutation{of: f.of, src: f.src, what: "cases swapped", from: from, to: to, new: text})
		}
	}
}

// literal changes a constant a little.
func (f *finder) literal(n *ast.BasicLit) {
	switch n.Kind {
	case token.INT:
		v, err := strconv.ParseUint(n.Value, 0, 63)
		if err != nil {
			return
		}
		f.replace("constant", n, strconv.FormatUint(v+1, 10))
		if v > 0 {
			f.replace("constant", n, strconv.FormatUint(v-1, 10))
		}
	case token.STRING:
		if v, err := strconv.Unquote(n.Value); err == nil && v != "" {
			last := v[len(v)-1] ^ 1
			f.replace("constant", n, strconv.Quote(v[:len(v)-1])[:1+len(strconv.Quote(v[:len(v)-1]))-2]+
				fmt.Sprintf(`\x%02x"`, last))
		}
	}
}

// ident swaps true and false, and takes another variable of the same type
// that is in scope.
func (f *finder) ident(n *ast.Ident) {
	switch obj := f.of.info.Uses[n].(type) {
	case *types.Const:
		if obj.Pkg() == nil && (n.Name == "true" || n.Name == "false") {
			f.replace("constant", n, strconv.FormatBool(n.Name == "false"))
		}
	case *types.Var:
		if obj.IsField() || obj.Pkg() != f.of.pkg {
			return
		}
		for s := f.of.pkg.Scope().Innermost(n.Pos()); s != nil && s != f.of.pkg.Scope(); s = s.Parent() {
			for _, name := range s.Names() {
				other, ok := s.Lookup(name).(*types.Var)
				if ok && other != obj && name != "_" && other.Pos() < n.Pos() && types.Identical(other.Type(), obj.Type()) {
					f.replace("wrong variable", n, name)
				}
			}
		}
	}
}

// field takes another field of the same type.
func (f *finder) field(n *ast.SelectorExpr) {
	sel := f.of.info.Selections[n]
	if sel == nil || sel.Kind() != types.FieldVal {
		return
	}
	at := sel.Recv()
	if p, ok := at.Underlying().(*types.Pointer); ok {
		at = p.Elem()
	}
	s, ok := at.Underlying().(*types.Struct)
	if !ok {
		return
	}
	for other := range s.Fields() {
		if other != sel.Obj() && !other.Embedded() && types.Identical(other.Type(), sel.Type()) {
			f.replace("wrong field", n.Sel, other.Name())
		}
	}
}
