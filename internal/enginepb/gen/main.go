// Command gen makes the Go code of the engines' protos, with tools that go.mod
// pins: protocompile reads a .proto, protoc-gen-go and protoc-gen-go-grpc (go
// tools) write the code. So it needs nothing but Go. With -check it writes
// nothing and fails when something is out of date.
package main

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"

	"github.com/bufbuild/protocompile"
	"github.com/bufbuild/protocompile/protoutil"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/pluginpb"
)

// root holds the protos, one package each; gen runs in the module's root.
const root = "internal/enginepb"

var plugins = []string{"protoc-gen-go", "protoc-gen-go-grpc"}

func main() {
	check := flag.Bool("check", false, "only say what is out of date")
	flag.Parse()
	if err := run(*check); err != nil {
		fmt.Fprintln(os.Stderr, "enginepb:", err)
		os.Exit(1)
	}
}

func run(check bool) error {
	protos, err := filepath.Glob(filepath.Join(root, "*", "*.proto"))
	if err != nil || len(protos) == 0 {
		return fmt.Errorf("no .proto files in %s: run it in the root of the module (%v)", root, err)
	}
	for _, path := range protos {
		files, err := generate(path)
		if err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		for name, text := range files {
			old, err := os.ReadFile(name)
			if err == nil && bytes.Equal(old, text) {
				continue
			}
			if check {
				return fmt.Errorf("%s is out of date: run `make generate`", name)
			}
			if err := os.WriteFile(name, text, 0o644); err != nil {
				return err
			}
			fmt.Println("wrote", name)
		}
	}
	return nil
}

// generate returns the Go files of one proto by path.
func generate(path string) (map[string][]byte, error) {
	dir, name := filepath.Split(path)
	c := protocompile.Compiler{
		Resolver:       &protocompile.SourceResolver{ImportPaths: []string{dir}},
		SourceInfoMode: protocompile.SourceInfoStandard, // for the comments
	}
	compiled, err := c.Compile(context.Background(), name)
	if err != nil {
		return nil, err
	}
	file := protoutil.ProtoFromFileDescriptor(compiled[0])
	request, err := proto.Marshal(&pluginpb.CodeGeneratorRequest{
		FileToGenerate: []string{name},
		Parameter:      proto.String("paths=source_relative"),
		ProtoFile:      []*descriptorpb.FileDescriptorProto{file},
	})
	if err != nil {
		return nil, err
	}
	files := map[string][]byte{}
	for _, plugin := range plugins {
		cmd := exec.Command("go", "tool", plugin)
		cmd.Stdin, cmd.Stderr = bytes.NewReader(request), os.Stderr
		out, err := cmd.Output()
		if err != nil {
			return nil, fmt.Errorf("%s: %w", plugin, err)
		}
		var answer pluginpb.CodeGeneratorResponse
		if err := proto.Unmarshal(out, &answer); err != nil {
			return nil, fmt.Errorf("%s: %w", plugin, err)
		}
		if answer.Error != nil {
			return nil, fmt.Errorf("%s: %s", plugin, *answer.Error)
		}
		for _, f := range answer.File {
			files[filepath.Join(dir, f.GetName())] = withoutVersions([]byte(f.GetContent()))
		}
	}
	return files, nil
}

// withoutVersions drops the lines that name the tools' versions: go.mod has
// them, and protoc-gen-go reports a protoc that was not used.
func withoutVersions(text []byte) []byte {
	lines := bytes.SplitAfter(text, []byte("\n"))
	lines = slices.DeleteFunc(lines, func(l []byte) bool {
		return bytes.HasPrefix(l, []byte("// versions:")) || bytes.HasPrefix(l, []byte("// \tprotoc")) || bytes.HasPrefix(l, []byte("// - protoc"))
	})
	return bytes.Join(lines, nil)
}
