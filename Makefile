# kvrelay's build. `make test` is all of CI; it needs Go and Python 3 and gets
# the rest itself. Every check fails when something it needs is missing.

GO     ?= go
PYTHON ?= python3
VENV   := .venv

# RACE= switches the race detector off; PARALLEL is how many test binaries run at once.
RACE     ?= -race
PARALLEL ?= 2
TIMEOUT  ?= 20m
# Tests against real peers carry the tag; plain `go test ./...` needs Go alone.
TAGS     := -tags integration
# gRPC's debug pages, which come with etcd's client, would link html/template, and with
# it every method of every type: 5 MB of the file and 3 of memory for what nobody asks for.
BUILDTAGS := -tags grpcnotrace
# BENCH and BENCHPKG choose what `make bench` measures, BENCHTIME and COUNT how long
# and how often: COUNT=6 gives benchstat enough to compare with.
BENCH     ?= .
BENCHPKG  ?= $(addprefix ./,$(sort $(dir $(shell grep -rl --include='*_test.go' --exclude-dir=bench '^func Benchmark' *))))
BENCHTIME ?= 200ms
COUNT     ?= 1
# Left out unless asked for (BENCHSKIP=none): minutes each, for one number that a test holds, too.
BENCHSKIP ?= LedgerPauses

# Every Go file, those of nested modules too.
GOFILES = $(shell find . -name '*.go' -not -path './$(VENV)*/*')

.DEFAULT_GOAL := help
.PHONY: mutate help build test test-k8s test-etcd test-kube test-dynamo test-monitoring test-release release vuln fuzz unit lint fmt generate check-generated venv venv-dynamo bench bench-compare bench-report test-bench soak clean need-go need-python

help: ## show this list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  make %-16s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

build: need-go ## build bin/kvrelay, static and stamped with the commit
	CGO_ENABLED=0 $(GO) build $(BUILDTAGS) -trimpath -buildvcs=auto -ldflags '-s -w' -o bin/kvrelay ./cmd/kvrelay

test: need-go need-python lint check-generated venv test-k8s test-etcd test-monitoring test-bench test-release ## check and test everything, real peers included
	$(GO) test $(RACE) $(TAGS) -p $(PARALLEL) -timeout $(TIMEOUT) ./...

test-k8s: need-go ## check the manifests: kustomize, Kubernetes' own types, and what a cluster finds out late
	@# -count=1: Go's cache of results does not see that files outside of the module changed.
	cd k8s/check && $(GO) vet ./... && $(GO) test -count=1 -p $(PARALLEL) -timeout $(TIMEOUT) ./...

test-etcd: need-go ## check the records in etcd, with etcd itself
	cd membership/etcd/check && $(GO) vet ./... && $(GO) test $(RACE) -count=1 -timeout $(TIMEOUT) ./...

test-monitoring: need-go ## check alert rules, metrics and dashboard with Prometheus' and Grafana's own code
	@# -count=1: as above.
	cd docs/monitoring/check && $(GO) vet ./... && $(GO) test -count=1 -timeout $(TIMEOUT) ./...

test-kube: need-go ## check the records in Kubernetes, with its own API server (a build of minutes, once)
	@# -vet=off: vet would read all of the API server's source, which takes as long again.
	cd membership/kube/check && $(GO) test -count=1 -vet=off -tags kube -timeout $(TIMEOUT) ./...

test-dynamo: need-go need-python venv-dynamo ## check against Dynamo's own KV router (a wheel of some 100 MB, once)
	$(GO) vet $(TAGS),dynamo ./integration
	$(GO) test $(RACE) $(TAGS),dynamo -run TestDynamo -timeout $(TIMEOUT) ./integration

# A release is $(RELEASE) for each of $(ARCHS): the file, what went into it (two
# SBOMs: every module with its version and checksum, the compiler, the commit, as
# text and as CycloneDX), and the checksums of all. It is built by the Go release
# that go.mod's toolchain line names, so the same commit gives the same bytes anywhere.
ARCHS     ?= amd64 arm64
RELEASE    = dist/kvrelay-linux-$(arch)
GOBUILD    = CGO_ENABLED=0 GOOS=linux GOARCH=$(arch) $(GO) build $(BUILDTAGS) -trimpath -ldflags '-s -w -buildid='
TOOLCHAIN  = $(shell awk '$$1 == "toolchain" { print $$2 }' go.mod)
# Without number and time of its making, and made by a tool without paths, whose
# checksum it holds, it is the same each time, too.
SBOM       = GOFLAGS="$$GOFLAGS -trimpath" $(GO) tool -modfile=.ci/tools/go.mod cyclonedx-gomod bin -json -noserial -notimestamp -output-version 1.6

release: export GOTOOLCHAIN = $(TOOLCHAIN)
release: need-go ## build dist/: kvrelay for linux, checksums, SBOMs
	@$(GO) version >/dev/null || { echo "cannot get $(TOOLCHAIN), which go.mod names for releases: is Go's module proxy reachable (GOPROXY)?" >&2; exit 1; }
	rm -rf dist && mkdir dist
	$(foreach arch,$(ARCHS),$(GOBUILD) -buildvcs=auto -o $(RELEASE) ./cmd/kvrelay && $(GO) version -m $(RELEASE) | sed '1s,^dist/,,' > $(RELEASE).sbom.txt && $(SBOM) -output $(RELEASE).cdx.json $(RELEASE) &&) true
	cd dist && sha256sum * > SHA256SUMS && cat SHA256SUMS

# COLD=1 compiles everything anew for the second build (minutes), where the usual
# check takes compiled packages from Go's cache and links them anew.
test-release: arch = amd64
test-release: need-go ## build twice, in two folders, and compare the bytes; compare the SBOMs with the file
	@set -e; other=$$(mktemp -d); trap 'chmod -R u+w "$$other"; rm -rf "$$other"' EXIT; \
	mkdir "$$other/elsewhere"; tar -cf - --exclude './$(VENV)*' --exclude ./.git --exclude ./dist --exclude ./bin . | tar -xf - -C "$$other/elsewhere"; \
	$(GOBUILD) -buildvcs=false -o "$$other/first" ./cmd/kvrelay; \
	(cd "$$other/elsewhere" && $(if $(COLD),GOCACHE="$$other/cache") $(GOBUILD) -buildvcs=false -o "$$other/second" ./cmd/kvrelay); \
	cmp "$$other/first" "$$other/second"; \
	size=$$(stat -c %s "$$other/first"); if [ $$size -gt 33000000 ]; then echo "the file has $$size bytes: what is new in it (go tool nm -size), and does something call methods by name (-ldflags=-dumpdep, ReflectMethod)?" >&2; exit 1; fi; \
	if grep -qF "$$PWD" "$$other/first"; then echo "the build holds the path $$PWD" >&2; exit 1; fi; \
	echo "two builds, the same bytes: $$(sha256sum < "$$other/first")"; \
	for file in first second; do $(SBOM) -output "$$other/$$file.cdx.json" "$$other/$$file"; done; \
	sed -i 's/"value": "second"/"value": "first"/' "$$other/second.cdx.json"; \
	cmp "$$other/first.cdx.json" "$$other/second.cdx.json"; \
	n=0; for module in $$($(GO) version -m "$$other/first" | awk '$$1 == "dep" { print $$2 "@" $$3 }'); do n=$$((n + 1)); \
		grep -qF "\"pkg:golang/$$module?" "$$other/first.cdx.json" || { echo "the SBOM does not name $$module" >&2; exit 1; }; done; \
	have=$$(grep -c '"purl": "pkg:golang/' "$$other/first.cdx.json"); \
	if [ $$n -lt 20 ] || [ $$have -lt $$n ]; then echo "the SBOM names $$have modules, the file has $$n" >&2; exit 1; fi; \
	echo "the SBOM names each of the file's $$n modules"

vuln: need-go ## look for known vulnerabilities in what a release is built of (govulncheck, pinned)
	GO='$(GO)' .ci/vuln

unit: need-go ## run the tests that need Go alone
	$(GO) test -p $(PARALLEL) -timeout $(TIMEOUT) ./...

lint: need-go ## check with gofmt, go vet, staticcheck (pinned in go.mod)
	@bad="$$(gofmt -l $(GOFILES))"; if [ -n "$$bad" ]; then \
		echo "not formatted (run: make fmt):"; echo "$$bad"; exit 1; fi
	$(GO) vet $(TAGS) ./...
	$(GO) vet -tags slim ./cmd/kvrelay
	$(GO) tool staticcheck $(TAGS) ./...

fmt: need-go ## format every Go file
	@gofmt -l -w $(GOFILES)

generate: need-go ## rewrite what comes from other files: parts of the documentation, code of the protos
	$(GO) run ./internal/docgen
	$(GO) run ./internal/enginepb/gen

check-generated: need-go ## fail when `make generate` would change something
	$(GO) run ./internal/docgen -check
	$(GO) run ./internal/enginepb/gen -check

venv: $(VENV)/.ready ## install the integration tests' Python packages, in .venv

# Made beside and renamed, so that an install that was cut off is not taken for a whole one.
$(VENV)/.ready: integration/requirements.txt | need-python
	rm -rf $(VENV)
	@$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); \
		echo "make venv: $(PYTHON) cannot make virtual environments; on Debian and Ubuntu: apt-get install python3-venv" >&2; exit 1; }
	@$(VENV)/bin/python -m pip install --quiet --disable-pip-version-check -r integration/requirements.txt || { \
		echo "make venv: pip could not install integration/requirements.txt; is a package index reachable?" >&2; exit 1; }
	@touch $@

venv-dynamo: $(VENV)-dynamo/.ready ## install Dynamo's Python package, in .venv-dynamo

$(VENV)-dynamo/.ready: integration/dynamo-requirements.txt | need-python
	rm -rf $(VENV)-dynamo
	@$(PYTHON) -m venv $(VENV)-dynamo || { rm -rf $(VENV)-dynamo; \
		echo "make venv-dynamo: $(PYTHON) cannot make virtual environments; on Debian and Ubuntu: apt-get install python3-venv" >&2; exit 1; }
	@$(VENV)-dynamo/bin/python -m pip install --quiet --disable-pip-version-check -r integration/dynamo-requirements.txt || { \
		echo "make venv-dynamo: pip could not install integration/dynamo-requirements.txt; is a package index reachable? (it needs Linux and Python 3.10 or later)" >&2; exit 1; }
	@touch $@

# Each fuzz target, one after another: FUZZTIME each, FUZZ chooses by folder and name.
FUZZTIME ?= 10s
FUZZ     ?= .

fuzz: need-go ## fuzz every parser for a while and show what inputs cost (FUZZTIME=10s FUZZ=regexp)
	$(GO) run ./internal/fuzzall -fuzztime $(FUZZTIME) -fuzz '$(FUZZ)'

# MUTATIONS and MUTATIONSEED choose what `make mutate` tries.
MUTATIONS    ?= 200
MUTATIONSEED ?= 1

mutate: need-go ## change the core a little, MUTATIONS times, and see whether its tests notice
	$(GO) run ./internal/mutate -n $(MUTATIONS) -seed $(MUTATIONSEED) -at-least 90

bench: need-go ## run benchmarks, printed as benchstat reads them (BENCH=regexp BENCHPKG=./decode BENCHTIME=200ms COUNT=1)
	$(GO) test -run '^$$' -bench '$(BENCH)' -skip '$(BENCHSKIP)' -benchmem -benchtime $(BENCHTIME) -count $(COUNT) -timeout $(TIMEOUT) -p 1 $(BENCHPKG)

bench-compare: need-go ## time kvrelay's msgpack beside tinylib's and vmihailenco's
	@out=$$(mktemp); trap 'rm -f "$$out"' EXIT; \
	(cd bench/compare && $(GO) test -run '^$$' -bench . -benchtime $(BENCHTIME) -count $(COUNT) .) > "$$out" || { cat "$$out"; exit 1; }; \
	$(GO) run ./bench/report -compare < "$$out"

bench-report: need-go ## measure all figures of docs/performance.md; ten minutes on a machine that does nothing else
	$(GO) run ./bench/report

test-bench: need-go ## check the benchmarks: that bench-compare compares the same work, and limits that a busy machine cannot trip
	cd bench/compare && $(GO) vet ./... && $(GO) test ./...
	$(GO) test -count=1 ./internal/quicknet ./internal/zmtp ./sinks ./relay -run 'TestThrough|TestErrors|TestAllocations|TestAppendAllocates|TestFramesLieInTheBuffer|TestReaderRatio'

# Hours of trouble of all kinds at once, see docs/reliability.md. SOAK=2m is a look; the
# seed of a broken run repeats its trouble.
SOAK ?= 1h
SEED ?= $(shell date +%s)

soak: need-go need-python venv ## cause trouble of all kinds at once for SOAK=1h and check everything each minute (SEED=)
	$(GO) test -tags integration ./integration -run 'TestSoak$$' -count=1 -v -timeout 0 -soak $(SOAK) -soak-seed $(SEED)

clean: ## remove what was built or installed here
	rm -rf bin dist $(VENV) $(VENV)-dynamo

need-go:
	@command -v $(GO) >/dev/null || { echo "missing: Go 1.26 or later (see go.mod)" >&2; exit 1; }

need-python:
	@command -v $(PYTHON) >/dev/null || { \
		echo "missing: Python 3 with venv, for the tests against real libzmq (\`make unit\` runs the others)" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 9))' || { \
		echo "too old: $$($(PYTHON) --version); the integration tests need Python 3.9 or later" >&2; exit 1; }
