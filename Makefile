# make test      what a change needs: gets the servers (as root on Debian or Ubuntu), lints, tests
# make verify    what the end of a task and a release need: the race detector, long checks, other clients and systems
# make build     the command, in bin/
# make bench     the figures of docs/benchmarks.md, on this machine
# make help      the rest

GO          ?= go
# The modules of this repository, each with its own dependencies.
MODULES     := . $(patsubst %/go.mod,%,$(wildcard */go.mod */*/go.mod))
PUBLISHED   := $(filter-out e2e,$(MODULES))
# The packages of modules, for a go command in the workspace.
packages     = $(foreach m,$(1),$(if $(filter .,$(m)),./...,./$(m)/...))
STATICCHECK := honnef.co/go/tools/cmd/staticcheck@v0.8.2
# Where scripts/servers puts the servers that it builds.
export HOLDFAST_SERVERS := $(CURDIR)/bin/servers
# Coverage of the packages that everything stands on, in percent.
COVERAGE    := 90

# Prints the time and what begins now.
SAY         := @printf '%s %s\n' "$$(date +%T)"
# A test that hangs fails after this time. It is far above what a package takes.
TIMEOUT     := -timeout 15m
# Run tests, and report on several runs: see the script.
RUN         := HOLDFAST_REQUIRE_SERVERS=1 ./scripts/tests run
REPORT      := ./scripts/tests report

.PHONY: help build test short verify lint race torture mistakes versions cover cross standalone bench fuzz interop

help:
	@sed -n 's/^# make /make /p' Makefile
	@echo 'make servers    gets the servers that the tests start'
	@echo 'make lint       gofmt, go vet, staticcheck'
	@echo 'make short      the short tests of every package'
	@echo 'make race       all tests, under the race detector'
	@echo 'make alone      the tests that need the whole machine'
	@echo 'make torture    the check on every store, with real servers'
	@echo 'make mistakes   the check on stores with planted mistakes and former defects, and on many locks; takes hours'
	@echo 'make versions   the suite and a short check of every store on newer servers, and its layouts'
	@echo 'make cover      coverage of the root package and driver, at least $(COVERAGE) %'
	@echo 'make cross      builds for the systems that the tests do not run on'
	@echo 'make standalone builds each module without the workspace'
	@echo 'make interop    locks shared with the clients of other projects'
	@echo 'make fuzz       each fuzz target for a while'

# One file that needs no other and starts fast, without the tables for debuggers (a fifth of it).
build:
	CGO_ENABLED=0 $(GO) build -ldflags=-w -o bin/holdfast ./cmd/holdfast

test: announce servers lint short
	$(SAY) 'make test has passed; make verify runs the rest'

.PHONY: announce
announce:
	$(SAY) 'make test: servers, lint, test; about 10 minutes on two free cores, and up to 10 more where servers are missing'

# Each part can be run alone. They go one after the other, because many of their tests need the processor. A part that
# fails does not keep the others from running: one run shows all that is wrong.
PARTS       := race cover alone torture versions cross standalone
verify: servers
	$(SAY) 'verify: $(PARTS); about 45 minutes on two free cores'
	@./scripts/parts $(PARTS)
	$(SAY) 'make verify has passed'

# Fails, with the line that helps, where a server is missing and cannot be
# installed from here.
.PHONY: servers
servers:
	$(SAY) 'servers: install what is missing, build etcd'
	@./scripts/servers

# Gets newer servers than the system has, without installing them.
.PHONY: newer
newer: servers
	$(SAY) 'newer servers: download what bin/newer lacks'
	@./scripts/newer-servers

# The short tests of every package. Most of their time they wait, for servers and for
# leases, so those of several packages go side by side. The check judges what happens
# in time: its packages go one after the other, and beside no others. What is left to
# make verify: packages that are long as a whole, and stores run a second time, over
# another client or on another kind of server.
LONG        := /(torture|interop|bench|tools|versions)(/|$$)
LONG_TESTS  := ^(TestConformance(Cluster|Distribution|Goredis|Replicas|Sentinel)|TestCheckGoredis|TestGalera|TestLayoutRefusedCommandKeepsGrants|TestSentinelFailoverKeepsLayoutLocks|TestManyLocksOverASlowLink|TestThousandsOfLocksOverASlowLink)$$
# Tests that judge what happens in time, or need the whole machine.
ALONE       := ^(TestCheckGoredis|TestManyLocksOverASlowLink|TestThousandsOfLocksOverASlowLink)$$
# The packages that take more than a minute, because they start many servers and wait for leases of these to end. They
# go first: with them side by side the rest fits beside.
SLOWEST     := $(addprefix ./e2e/conformance/,etcd zookeeper redis mysql postgres) ./cmd/holdfast
# Tests of ALONE that the race detector makes too slow: they skip themselves under it.
RACE_FREE   := ^TestManyLocksOverASlowLink$$
# A dozen suites, each in a process of its own.
LAYOUTS     := ^TestConformanceLayouts$$
short: servers
	$(SAY) 'test: every package but the check'
	@$(RUN) short "$(SLOWEST) $$($(GO) list $(call packages,$(filter-out check,$(MODULES))) | grep -vE '$(LONG)' | tr '\n' ' ')" \
		-short -p 5 $(TIMEOUT) -skip '$(LONG_TESTS)'
	$(SAY) 'test: the check'
	@$(RUN) short-check ./check/... -short -p 1 $(TIMEOUT)
	@$(REPORT) short short-check

# Gets the clients of other projects, in Java and Python, that share locks with ours in the
# tests.
.PHONY: clients
clients: servers
	$(SAY) 'clients: install those in Python, build those in Java'
	@set -e; for list in $(wildcard e2e/interop/*/*/requirements.txt); do dir=$$(dirname $$list); \
		if [ ! -d $$dir/target ] || [ -n "$$(find $$list -newer $$dir/target)" ]; then \
			echo "install: $$dir"; rm -rf $$dir/target; python3 -m pip install -q --no-compile --root-user-action=ignore --target $$dir/target -r $$list && touch $$dir/target; fi; done
	@set -e; for pom in $(wildcard e2e/interop/*/*/pom.xml); do dir=$$(dirname $$pom); \
		if [ ! -d $$dir/target/dependency ] || [ -n "$$(find $$pom $$dir/src -newer $$dir/target/dependency)" ]; then \
			echo "build: $$dir"; (cd $$dir && mvn -q -B package dependency:copy-dependencies && touch target/dependency); fi; done

interop: clients
	$(SAY) 'test: locks shared with the clients of other projects'
	@$(RUN) interop ./e2e/interop/... -timeout 20m
	@$(REPORT) interop

lint:
	$(SAY) 'lint: gofmt'
	@bad=$$(gofmt -l $$(git ls-files '*.go')); if [ -n "$$bad" ]; then echo "gofmt would change:"; echo "$$bad"; exit 1; fi
	$(SAY) 'lint: go vet'
	@$(GO) vet $(call packages,$(MODULES))
	$(SAY) 'lint: staticcheck'
	@$(GO) run $(STATICCHECK) $(call packages,$(MODULES))

# The packages go side by side, those that wait longest first. Checks judge what happens in
# time: they go one after the other, and beside no others.
race: clients
	$(SAY) 'race: every package but the check'
	@$(RUN) race "$(SLOWEST) $$($(GO) list $(call packages,$(filter-out check,$(MODULES))) | grep -vE '/(torture|versions)$$|$(COVERED)' | tr '\n' ' ')" \
		-race -p 4 -timeout 20m -skip '$(ALONE)|$(LAYOUTS)'
	$(SAY) 'race: the check'
	@$(RUN) race-check ./check/... -race -p 1 -timeout 20m
	@$(REPORT) race race-check

# The tests of ALONE, one after the other.
.PHONY: alone
alone: servers
	$(SAY) 'alone: the check beside another Redis client, thousands of locks over a slow link'
	@$(RUN) alone-race './e2e/conformance/redis ./e2e/conformance/zookeeper' -race -p 1 -timeout 20m -run '$(ALONE)'
	@$(RUN) alone ./e2e/conformance/etcd -timeout 15m -run '$(RACE_FREE)'
	@$(REPORT) alone alone-race

torture: servers
	$(SAY) 'torture: the check on every store'
	@$(RUN) torture ./e2e/torture -timeout 20m
	@$(REPORT) torture

# Runs by hand: it takes up to two hours. Each planted mistake must be convicted. The locks
# are lost where the machine is too busy to renew them.
mistakes: servers
	$(SAY) 'mistakes: the check on stores with planted mistakes and former defects'
	@cd e2e && HOLDFAST_REQUIRE_SERVERS=1 $(GO) test -v -timeout 3h -run '^Test(ServerMistakes|FormerDefects)AreConvicted$$' ./torture -mistakes
	$(SAY) 'mistakes: 10,000 locks of one client over a slow link'
	@cd e2e && HOLDFAST_REQUIRE_SERVERS=1 $(GO) test -v -timeout 30m -run '^TestManyLocksOverASlowLink$$' ./torture -locks 10000 -ttl 30s
	@cd e2e && HOLDFAST_REQUIRE_SERVERS=1 $(GO) test -v -run '^TestManyLocksOverASlowLink$$' ./conformance/etcd

versions: newer
	$(SAY) 'versions: the stores on newer servers, and the layouts of other Redis clients'
	@$(RUN) versions './e2e/conformance/versions ./e2e/conformance/redis' -p 2 -parallel 6 -timeout 20m \
		-run '$(LAYOUTS)|^Test(InstalledVersionsAreListed|SelectionsMatchTests|StoresPassOnNewerServers|CheckPassesOnNewerServers)$$'
	@$(REPORT) versions

# The packages that everything stands on, under the race detector as well.
COVERED     := holdfast-go/holdfast(/driver(/.*)?|/memstore)?$$
cover:
	$(SAY) 'cover: the root package and driver, with the race detector'
	@set -e; profile=$$(mktemp); trap 'rm -f '$$profile EXIT; \
	$(GO) test -race -coverprofile=$$profile -coverpkg=.,./driver . ./driver/... ./memstore; \
	for p in '' /driver; do \
		grep -E "^mode:|^github.com/holdfast-go/holdfast$$p/[a-z_]+\.go:" $$profile > $$profile.one; \
		got=$$($(GO) tool cover -func=$$profile.one | awk '/^total:/ {sub("%","",$$3); print $$3}'); rm $$profile.one; \
		echo "coverage: holdfast$$p $$got %, at least $(COVERAGE) % wanted"; \
		awk "BEGIN {exit !($$got >= $(COVERAGE))}"; \
	done

cross:
	@set -e; for target in darwin/arm64 darwin/amd64 linux/arm64 linux/386 windows/amd64; do printf '%s %s\n' "$$(date +%T)" "cross: vet for $$target"; \
		for m in $(PUBLISHED); do (cd $$m && CGO_ENABLED=0 GOOS=$${target%/*} GOARCH=$${target#*/} $(GO) vet ./...); done; done

# Builds each module as its users get it: without the workspace, and with this clone in
# the place of the published modules. The tests of a module of one store are short, and
# run with the versions of its own go.mod, too.
standalone:
	@set -e; root=$$(pwd); for m in $(PUBLISHED); do printf '%s %s\n' "$$(date +%T)" "standalone: $$m"; \
		tmp=$$(mktemp -d); cp $$m/go.mod $$m/go.sum $$tmp/; \
		for other in $(PUBLISHED); do if [ $$other = . ]; then path=; else path=/$$other; fi; \
			if [ $$other != $$m ] && grep -q "github.com/holdfast-go/holdfast$$path v" $$m/go.mod; then \
				$(GO) mod edit -replace=github.com/holdfast-go/holdfast$$path=$$root/$$other $$tmp/go.mod; fi; done; \
		case $$m in .|check|cmd/holdfast) act='vet' ;; *) act='test -short -timeout 10m' ;; esac; \
		(cd $$m && GOWORK=off GOFLAGS="-mod=mod -modfile=$$tmp/go.mod" $(GO) $$act ./...); rm -r $$tmp; done

bench:
	$(GO) test -run '^$$' -bench . -benchmem -count 5 . ./filestore
	cd cmd/holdfast && $(GO) test -run '^$$' -bench . ./...
	cd e2e && $(GO) test -run '^$$' -bench . ./bench/...
	cd e2e && $(GO) run ./bench

fuzz:
	@set -e; for pkg in filestore fence; do for f in $$($(GO) test -list '^Fuzz' ./$$pkg | grep ^Fuzz); do \
		$(GO) test -run '^$$' -fuzz "^$$f$$" -fuzztime 20s ./$$pkg; done; done
