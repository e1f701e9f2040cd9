# kvrelay's build. `make test` is all of CI; it needs Go and Python 3 and gets
# the rest itself. Every check fails when something it needs is missing.

GO     ?= go
PYTHON ?= python3
VENV   := .venv

# RACE= switches the race detector off; PARALLEL is how many test binaries run at once.
RACE     ?= -race
PARALLEL ?= 2
TIMEOUT  ?= 15m
# Tests against real peers carry the tag; plain `go test ./...` needs Go alone.
TAGS     := -tags integration
# BENCH and BENCHPKG choose what `make bench` measures.
BENCH    ?= .
BENCHPKG ?= ./...

# Every Go file, those of nested modules too.
GOFILES = $(shell find . -name '*.go' -not -path './$(VENV)*/*')

.DEFAULT_GOAL := help
.PHONY: help build test test-k8s test-dynamo test-release release unit lint fmt generate check-generated venv venv-dynamo bench clean need-go need-python

help: ## show this list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  make %-16s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

build: need-go ## build bin/kvrelay, static and stamped with the commit
	CGO_ENABLED=0 $(GO) build -trimpath -buildvcs=auto -ldflags '-s -w' -o bin/kvrelay ./cmd/kvrelay

test: need-go need-python lint check-generated venv test-k8s test-release ## check and test everything, real peers included
	$(GO) test $(RACE) $(TAGS) -p $(PARALLEL) -timeout $(TIMEOUT) ./...

test-k8s: need-go ## check the manifests: kustomize, Kubernetes' own types, and what a cluster finds out late
	@# -count=1: Go's cache of results does not see that files outside of the module changed.
	cd k8s/check && $(GO) vet ./... && $(GO) test -count=1 -p $(PARALLEL) -timeout $(TIMEOUT) ./...

test-dynamo: need-go need-python venv-dynamo ## the tests against Dynamo's own KV router (a wheel of some 100 MB, once)
	$(GO) vet $(TAGS),dynamo ./integration
	$(GO) test $(RACE) $(TAGS),dynamo -run TestDynamo -timeout $(TIMEOUT) ./integration

# A release is $(RELEASE) for each of $(ARCHS): the file, what went into it (an
# SBOM: every module with its version and checksum, the compiler, the commit),
# and the checksums of all. The same commit gives the same bytes anywhere.
ARCHS     ?= amd64 arm64
RELEASE    = dist/kvrelay-linux-$(arch)
GOBUILD    = CGO_ENABLED=0 GOOS=linux GOARCH=$(arch) $(GO) build -trimpath -ldflags '-s -w -buildid='

release: need-go ## build dist/: kvrelay for linux, checksums, SBOMs
	rm -rf dist && mkdir dist
	$(foreach arch,$(ARCHS),$(GOBUILD) -buildvcs=auto -o $(RELEASE) ./cmd/kvrelay && $(GO) version -m $(RELEASE) | sed '1s,^dist/,,' > $(RELEASE).sbom.txt &&) true
	cd dist && sha256sum * > SHA256SUMS && cat SHA256SUMS

# COLD=1 compiles everything anew for the second build (minutes), where the usual
# check takes compiled packages from Go's cache and links them anew.
test-release: arch = amd64
test-release: need-go ## build twice, in two folders, and compare the bytes
	@set -e; other=$$(mktemp -d); trap 'chmod -R u+w "$$other"; rm -rf "$$other"' EXIT; \
	mkdir "$$other/elsewhere"; tar -cf - --exclude './$(VENV)*' --exclude ./.git --exclude ./dist --exclude ./bin . | tar -xf - -C "$$other/elsewhere"; \
	$(GOBUILD) -buildvcs=false -o "$$other/first" ./cmd/kvrelay; \
	(cd "$$other/elsewhere" && $(if $(COLD),GOCACHE="$$other/cache") $(GOBUILD) -buildvcs=false -o "$$other/second" ./cmd/kvrelay); \
	cmp "$$other/first" "$$other/second"; \
	if grep -qF "$$PWD" "$$other/first"; then echo "the build holds the path $$PWD" >&2; exit 1; fi; \
	echo "two builds, the same bytes: $$(sha256sum < "$$other/first")"

unit: need-go ## the tests that need Go alone
	$(GO) test -p $(PARALLEL) -timeout $(TIMEOUT) ./...

lint: need-go ## gofmt, go vet, staticcheck (pinned in go.mod)
	@bad="$$(gofmt -l $(GOFILES))"; if [ -n "$$bad" ]; then \
		echo "not formatted (run: make fmt):"; echo "$$bad"; exit 1; fi
	$(GO) vet $(TAGS) ./...
	$(GO) tool staticcheck $(TAGS) ./...

fmt: need-go ## format every Go file
	gofmt -w $(GOFILES)

generate: need-go ## rewrite what comes from other files: parts of the documentation, code of the protos
	$(GO) run ./internal/docgen
	$(GO) run ./internal/enginepb/gen

check-generated: need-go ## fail when `make generate` would change something
	$(GO) run ./internal/docgen -check
	$(GO) run ./internal/enginepb/gen -check

venv: $(VENV)/.ready ## Python packages of the integration tests, in .venv

# Made beside and renamed, so that an install that was cut off is not taken for a whole one.
$(VENV)/.ready: integration/requirements.txt | need-python
	rm -rf $(VENV)
	@$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); \
		echo "make venv: $(PYTHON) cannot make virtual environments; on Debian and Ubuntu: apt-get install python3-venv" >&2; exit 1; }
	@$(VENV)/bin/python -m pip install --quiet --disable-pip-version-check -r integration/requirements.txt || { \
		echo "make venv: pip could not install integration/requirements.txt; is a package index reachable?" >&2; exit 1; }
	@touch $@

venv-dynamo: $(VENV)-dynamo/.ready ## Dynamo's Python package, in .venv-dynamo

$(VENV)-dynamo/.ready: integration/dynamo-requirements.txt | need-python
	rm -rf $(VENV)-dynamo
	@$(PYTHON) -m venv $(VENV)-dynamo || { rm -rf $(VENV)-dynamo; \
		echo "make venv-dynamo: $(PYTHON) cannot make virtual environments; on Debian and Ubuntu: apt-get install python3-venv" >&2; exit 1; }
	@$(VENV)-dynamo/bin/python -m pip install --quiet --disable-pip-version-check -r integration/dynamo-requirements.txt || { \
		echo "make venv-dynamo: pip could not install integration/dynamo-requirements.txt; is a package index reachable? (it needs Linux and Python 3.10 or later)" >&2; exit 1; }
	@touch $@

bench: need-go ## benchmarks (BENCH=regexp BENCHPKG=./decode)
	$(GO) test -run '^$$' -bench '$(BENCH)' -benchmem -p 1 $(BENCHPKG)

clean: ## remove what was built or installed here
	rm -rf bin dist $(VENV) $(VENV)-dynamo

need-go:
	@command -v $(GO) >/dev/null || { echo "missing: Go 1.26 or later (see go.mod)" >&2; exit 1; }

need-python:
	@command -v $(PYTHON) >/dev/null || { \
		echo "missing: Python 3 with venv, for the tests against real libzmq (\`make unit\` runs the others)" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 9))' || { \
		echo "too old: $$($(PYTHON) --version); the integration tests need Python 3.9 or later" >&2; exit 1; }
