# make test      what a change needs: gets the servers (as root on Debian or Ubuntu), lints, tests
# make verify    what the end of a task needs too: the race detector, long checks, other clients, other systems
# make release   what a release needs too: every test under the race detector, newer servers
# make build     the command, in bin/
# make bench     the figures of docs/benchmarks.md, on this machine
# make help      the rest

GO          ?= go
# The modules of this repository, each with its own dependencies. Those of adapters/ have a workspace of their own.
ADAPTERS    := $(patsubst adapters/%/go.mod,./%,$(wildcard adapters/*/go.mod))
MODULES     := . $(patsubst %/go.mod,%,$(filter-out adapters/%,$(wildcard */go.mod */*/go.mod)))
PUBLISHED   := $(filter-out e2e,$(MODULES))
# The packages of modules, for a go command in the workspace.
packages     = $(foreach m,$(1),$(if $(filter .,$(m)),./...,./$(m)/...))
# The names of these packages, in one line, without those that match a pattern.
list         = $$($(GO) list $(call packages,$(1)) | grep -vE '$(2)' | tr '\n' ' ')
# Compiles every package and its tests, with the given flags, so that no test runs beside a compiler that needs the
# whole machine.
compile      = $(GO) list -export -test -deps -f '' $(1) $(call packages,$(filter-out check,$(MODULES))) >/dev/null
STATICCHECK := honnef.co/go/tools/cmd/staticcheck@v0.8.2
# Without the path of the clone in them, results of the compiler, vet and staticcheck serve every clone of this machine.
export GOFLAGS := $(GOFLAGS) -trimpath
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

.PHONY: help build test short verify release lint race torture mistakes versions cover adapters cross standalone bench fuzz interop

help:
	@sed -n 's/^# make /make /p' Makefile
	@echo 'make servers    gets the servers that the tests start'
	@echo 'make lint       gofmt, go vet, staticcheck'
	@echo 'make short      the short tests of every package'
	@echo 'make race       the tests without servers, and the suite of every store, under the race detector'
	@echo 'make race-all   the other tests with servers, and the check, under the race detector'
	@echo 'make explore    every interleaving of the state machines, and thousands of seeds in fake time'
	@echo 'make alone      the tests that need the whole machine'
	@echo 'make torture    the check on every store, with real servers'
	@echo 'make mistakes   the check on stores with planted mistakes and former defects, and on many locks; takes hours'
	@echo 'make versions   the suite and a short check of every store on newer servers, and its layouts'
	@echo 'make cover      coverage of the root package and driver, at least $(COVERAGE) %'
	@echo 'make adapters   the locks for other libraries'
	@echo 'make cross      builds for the systems that the tests do not run on'
	@echo 'make standalone builds each module without the workspace, and with older and newer versions of the others'
	@echo 'make interop    locks shared with the clients of other projects'
	@echo 'make fuzz       each fuzz target for $(FUZZTIME) (set it with FUZZTIME=)'

# One file that needs no other and starts fast, without the tables for debuggers (a fifth of it).
build:
	CGO_ENABLED=0 $(GO) build -ldflags=-w -o bin/holdfast ./cmd/holdfast

# The tests mostly wait, so lint goes beside them and takes what they leave of the processor. Its findings come last.
test: announce servers
	$(SAY) 'compile'
	@$(call compile)
	@nice $(MAKE) --no-print-directory lint >bin/lint.log 2>&1 & lint=$$!; status=0; \
		$(MAKE) --no-print-directory short-tests || status=$$?; wait $$lint || status=$$?; cat bin/lint.log; exit $$status
	$(SAY) 'make test has passed; make verify runs the rest'

.PHONY: announce
announce:
	$(SAY) 'make test: servers, test, lint beside it; about 10 minutes on two free cores, and up to 15 more where servers are missing'

# Each part can be run alone. They go one after the other, because many of their tests need the processor. A part that
# fails does not keep the others from running: one run shows all that is wrong.
PARTS       := race interop cover explore fuzz-short alone torture adapters cross standalone
verify: servers
	$(SAY) 'verify: $(PARTS); about 45 minutes on two free cores'
	@./scripts/parts $(PARTS)
	$(SAY) 'make verify has passed'

# The race detector makes a test two to three times slower. What it can find in a store, it mostly finds in the suite.
release: servers
	@./scripts/parts race-all versions
	$(SAY) 'make release has passed; make mistakes runs the rest'

# Fails, with the line that helps, where a server is missing and cannot be
# installed from here.
.PHONY: servers
servers:
	$(SAY) 'servers: install what is missing, build etcd, NATS and a server of S3'
	@./scripts/servers

# Gets newer servers than the system has, without installing them.
.PHONY: newer
newer: servers
	$(SAY) 'newer servers: download what bin/newer lacks'
	@./scripts/newer-servers

# The short tests of every package. Most of their time they wait, for servers and for
# leases, so those of several packages go side by side. The check judges what happens
# in time: its packages go one after the other, and beside no others. What is left to
# make verify: packages that are long as a whole, and stores run a second time, on
# another kind of server, or with a layout or a recipe that shares their code.
LONG        := /(torture|interop|bench|tools|versions)(/|$$)
# The check, and the tests of the command that make one.
JUDGED      := ./check/... ./cmd/holdfast/internal/lab
LONG_TESTS  := ^(TestClientOfProgramLeavesCutOffMember|TestReadAtADeposedLeaderIsNoOlder|TestUndoAtADeposedLeaderIsNotConfirmed|TestLocksWorkDuringBackup|TestOpenTransactionHoldsOthers|TestExamineFindsBadReplicas|TestDoctorMeasures|TestConformance(Cluster|Distribution|Replicas|Sentinel)|TestGalera|TestSettingsLeftInSessionsKeepLocksExact|TestLayoutRefusedCommandKeepsGrants|TestLockOutlivesEvery(Member|Server)|TestStoresReconnectAfterOutage|TestUnitsRunUnderSystemd|TestManyLocksOverASlowLink|TestThousandsOfLocksOverASlowLink)$$
# Tests that judge what happens in time, or need the whole machine.
ALONE       := ^(TestManyLocksOverASlowLink|TestThousandsOfLocksOverASlowLink)$$
# The packages that take more than a minute, because they start many servers and wait for leases of these to end. They
# go first: with them side by side the rest fits beside.
SLOWEST     := ./cmd/holdfast $(addprefix ./e2e/conformance/,redis mysql postgres zookeeper etcd redlock service nats s3 sqlite) ./driver/record
# Tests of ALONE that the race detector makes too slow: they skip themselves under it.
RACE_FREE   := ^TestManyLocksOverASlowLink$$
# A dozen suites, each in a process of its own.
LAYOUTS     := ^TestConformanceLayouts$$
.PHONY: short-tests
short: servers short-tests
short-tests:
	$(SAY) 'test: every package but the check'
	@$(call compile)
	@$(RUN) short "$(SLOWEST) $(call list,$(filter-out check,$(MODULES)),$(LONG)|/lab$$)" -short -ldflags=-w -p 6 $(TIMEOUT) -skip '$(LONG_TESTS)'
	$(SAY) 'test: the check'
	@$(RUN) short-check '$(JUDGED)' -short -p 1 $(TIMEOUT)
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

# The packages go side by side, those that wait longest first.
race: servers
	$(SAY) 'race: every package without servers, and the command'
	@$(call compile,-race)
	@$(RUN) race "$(call list,$(filter-out check e2e,$(MODULES)),/lab$$|$(COVERED))" -race -p 4 $(TIMEOUT)
	$(SAY) 'race: the suite of every store, and the long tests'
	@$(RUN) race-suites "$(filter ./e2e/%,$(SLOWEST)) $$($(GO) list ./e2e/conformance/... | grep -v '/versions$$' | tr '\n' ' ')" \
		-race -p 3 -timeout 20m -run '$(LONG_TESTS)|^TestConformance' -skip '$(ALONE)|$(LAYOUTS)'
	@$(REPORT) race race-suites

# Checks judge what happens in time: they go one after the other, and beside no others.
.PHONY: race-all
race-all: clients
	$(SAY) 'race: the other tests with servers'
	@$(call compile,-race)
	@$(RUN) race-rest "$(filter ./e2e/%,$(SLOWEST)) $(call list,e2e,/(torture|versions)$$)" \
		-race -p 4 -timeout 30m -skip '$(LONG_TESTS)|^TestConformance'
	$(SAY) 'race: the check'
	@$(RUN) race-check '$(JUDGED)' -race -p 1 -timeout 20m -skip '^TestSimulationFindsMistakes$$'
	@$(REPORT) race-rest race-check

# Every interleaving of the core's state machines, deeper than in make test, and more seeds of the simulation.
.PHONY: explore
explore:
	$(SAY) 'explore: every interleaving of the state machines'
	@$(GO) test -timeout 20m -run '^TestEveryInterleaving' -explore 1 .
	@cd e2e && $(GO) test -timeout 20m -run '^TestEveryInterleaving' ./conformance/failover -explore 1
	$(SAY) 'explore: Lockers in fake time, by seeds'
	@$(GO) test -run '^TestSimulationKeepsEveryRule$$' ./check -simulate 2m

# The tests of ALONE, one after the other.
.PHONY: alone
alone: servers
	$(SAY) 'alone: thousands of locks over a slow link'
	@$(RUN) alone-race ./e2e/conformance/zookeeper -race -p 1 -timeout 20m -run '$(ALONE)'
	@$(RUN) alone ./e2e/conformance/etcd -timeout 15m -run '$(RACE_FREE)'
	@$(REPORT) alone alone-race

torture: servers
	$(SAY) 'torture: the check on every store'
	@$(RUN) torture ./e2e/torture -timeout 20m
	@$(REPORT) torture

# Runs by hand: it takes up to two hours. Each planted mistake must be convicted. The locks
# are lost where the machine is too busy to renew them.
mistakes: servers
	$(SAY) 'mistakes: the explorations with planted mistakes'
	@$(GO) test -timeout 60m -run '^TestExploration.*FindsMistakes$$' . ./driver/record
	@cd e2e && $(GO) test -timeout 60m -run '^TestExploration.*FindsMistakes$$' ./conformance/failover
	$(SAY) 'mistakes: the simulation of the core with planted mistakes'
	@$(GO) test -timeout 60m -run '^TestSimulationFindsMistakes$$' ./check
	$(SAY) 'mistakes: the check on stores with planted mistakes and former defects'
	@cd e2e && HOLDFAST_REQUIRE_SERVERS=1 $(GO) test -v -timeout 3h -run '^Test((ServerMistakes|FormerDefects)AreConvicted|SuiteConvictsMistakes)$$' ./torture -mistakes
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

adapters:
	$(SAY) 'adapters: lint, and test with the race detector'
	@cd adapters && $(GO) vet $(ADAPTERS) && $(GO) run $(STATICCHECK) $(ADAPTERS)
	@cd adapters && $(GO) test -race $(TIMEOUT) $(ADAPTERS)

cross:
	@set -e; for target in darwin/arm64 darwin/amd64 linux/arm64 linux/386 windows/amd64; do printf '%s %s\n' "$$(date +%T)" "cross: vet for $$target"; \
		for m in $(PUBLISHED); do (cd $$m && CGO_ENABLED=0 GOOS=$${target%/*} GOARCH=$${target#*/} $(GO) vet ./...); done; done

# Builds each module as its users get it, and pairs of versions.
standalone:
	@./scripts/standalone

bench:
	$(GO) test -run '^$$' -bench . -benchmem -count 5 .
	cd cmd/holdfast && $(GO) test -run '^$$' -bench . ./...
	cd e2e && $(GO) test -run '^$$' -bench . ./bench/...
	cd e2e && $(GO) run ./bench

# Each fuzz target of every package that has one. FUZZTIME is a time or a number of runs, as in 300x.
FUZZTIME    := 20s
fuzz:
	@set -e; for dir in $$(git ls-files '*_test.go' | xargs grep -l '^func Fuzz' | xargs -n 1 dirname | sort -u); do \
		for f in $$(sed -n 's/^func \(Fuzz[A-Za-z0-9_]*\)(.*/\1/p' $$dir/*_test.go); do \
			printf '%s %s\n' "$$(date +%T)" "fuzz: $$dir $$f"; \
			$(GO) test -run '^$$' -fuzz "^$$f$$" -fuzztime $(FUZZTIME) ./$$dir; done; done

# Some runs of each, for make verify.
.PHONY: fuzz-short
fuzz-short:
	@$(MAKE) --no-print-directory fuzz FUZZTIME=300x
