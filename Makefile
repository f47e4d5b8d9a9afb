# make test      everything: gets the servers it needs (as root on Debian or Ubuntu), checks, tests
# make build     the command, in bin/
# make bench     the figures of docs/benchmarks.md, on this machine
# make help      the rest

GO          ?= go
# The modules of this repository, each with its own dependencies.
MODULES     := . $(patsubst %/go.mod,%,$(wildcard */go.mod */*/go.mod))
PUBLISHED   := $(filter-out e2e,$(MODULES))
STATICCHECK := honnef.co/go/tools/cmd/staticcheck@v0.8.2
# Where scripts/servers puts the servers that it builds.
export HOLDFAST_SERVERS := $(CURDIR)/bin/servers
# Coverage of the packages that everything stands on, in percent.
COVERAGE    := 90

.PHONY: help build test check lint race torture cover cross standalone bench fuzz interop

help:
	@sed -n 's/^# make /make /p' Makefile
	@echo 'make lint       gofmt, go vet, staticcheck'
	@echo 'make race       the tests, under the race detector'
	@echo 'make torture    the check on every store, with real servers'
	@echo 'make cover      coverage of the root package and driver, at least $(COVERAGE) %'
	@echo 'make cross      builds for the systems that the tests do not run on'
	@echo 'make standalone builds and tests each module without the workspace'
	@echo 'make interop    locks shared with the neighbours'"'"' real clients'
	@echo 'make fuzz       each fuzz target for a while'

# One file that needs no other; it also starts faster.
build:
	CGO_ENABLED=0 $(GO) build -o bin/holdfast ./cmd/holdfast

test: servers neighbours lint race torture cover cross standalone

# Fails, with the line that helps, where a server is missing and cannot be
# installed from here.
.PHONY: servers
servers:
	./scripts/servers

# Builds the neighbours' clients in Java that share locks with ours in the tests.
.PHONY: neighbours
neighbours:
	@set -e; for pom in $(wildcard e2e/interop/*/*/pom.xml); do dir=$$(dirname $$pom); \
		if [ ! -d $$dir/target/dependency ] || [ -n "$$(find $$pom $$dir/src -newer $$dir/target/dependency)" ]; then \
			echo "build: $$dir"; (cd $$dir && mvn -q -B package dependency:copy-dependencies && touch target/dependency); fi; done

interop: servers neighbours
	cd e2e && HOLDFAST_REQUIRE_SERVERS=1 $(GO) test -v -timeout 20m ./interop/...

lint:
	@bad=$$(gofmt -l $$(git ls-files '*.go')); if [ -n "$$bad" ]; then echo "gofmt would change:"; echo "$$bad"; exit 1; fi
	@set -e; for m in $(MODULES); do echo "vet and staticcheck: $$m"; \
		(cd $$m && $(GO) vet ./... && $(GO) run $(STATICCHECK) ./...); done

# Those of servers and of the check go one after the other, and the torture of all
# stores for itself: it judges what happened in time, and needs a machine that keeps up.
race:
	@set -e; for m in $(filter-out e2e,$(MODULES)); do echo "test: $$m"; \
		case $$m in check) p="-p 1" ;; *) p= ;; esac; \
		(cd $$m && HOLDFAST_REQUIRE_SERVERS=1 $(GO) test -race $$p -timeout 20m ./...); done
	@echo "test: e2e"; cd e2e && HOLDFAST_REQUIRE_SERVERS=1 $(GO) test -race -p 1 -timeout 20m $$($(GO) list ./... | grep -v /torture)

torture:
	cd e2e && HOLDFAST_REQUIRE_SERVERS=1 $(GO) test -timeout 20m ./torture

cover:
	@set -e; profile=$$(mktemp); trap 'rm -f '$$profile EXIT; \
	$(GO) test -race -coverprofile=$$profile -coverpkg=.,./driver . ./driver/... ./memstore >/dev/null; \
	for p in '' /driver; do \
		grep -E "^mode:|^github.com/holdfast-go/holdfast$$p/[a-z_]+\.go:" $$profile > $$profile.one; \
		got=$$($(GO) tool cover -func=$$profile.one | awk '/^total:/ {sub("%","",$$3); print $$3}'); rm $$profile.one; \
		echo "coverage: holdfast$$p $$got %, at least $(COVERAGE) % wanted"; \
		awk "BEGIN {exit !($$got >= $(COVERAGE))}"; \
	done

cross:
	@set -e; for target in darwin/arm64 darwin/amd64 linux/arm64 linux/386 windows/amd64; do echo "vet for $$target"; \
		for m in $(PUBLISHED); do (cd $$m && CGO_ENABLED=0 GOOS=$${target%/*} GOARCH=$${target#*/} $(GO) vet ./...); done; done

# As a user gets a module: without the workspace, with the root module from
# this clone in the place of the published one.
standalone:
	@set -e; root=$$(pwd); for m in $(PUBLISHED); do echo "standalone: $$m"; \
		tmp=$$(mktemp -d); cp $$m/go.mod $$m/go.sum $$tmp/; \
		for other in $(PUBLISHED); do if [ $$other = . ]; then path=; else path=/$$other; fi; \
			if [ $$other != $$m ] && grep -q "github.com/holdfast-go/holdfast$$path v" $$m/go.mod; then \
				$(GO) mod edit -replace=github.com/holdfast-go/holdfast$$path=$$root/$$other $$tmp/go.mod; fi; done; \
		(cd $$m && GOWORK=off GOFLAGS="-mod=mod -modfile=$$tmp/go.mod" $(GO) test -short -timeout 10m ./...); rm -r $$tmp; done

bench:
	$(GO) test -run '^$$' -bench . -benchmem -count 5 . ./filestore
	cd cmd/holdfast && $(GO) test -run '^$$' -bench . ./...
	cd e2e && $(GO) test -run '^$$' -bench . ./bench/...

fuzz:
	@set -e; for pkg in filestore fence; do for f in $$($(GO) test -list '^Fuzz' ./$$pkg | grep ^Fuzz); do \
		$(GO) test -run '^$$' -fuzz "^$$f$$" -fuzztime 20s ./$$pkg; done; done
