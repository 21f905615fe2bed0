# make run      the daemon on a 1 GiB file in ./var, http://127.0.0.1:8790
# make test     everything CI checks: lint, types, layers, all test suites
# make bench    the daemon against the device and other stores, the figures of docs/performance.md: some minutes;
#               ROWS="1 5" only what these rows need, RUNS=1 fewer repetitions; then what eviction costs
# make bench-full  everything, half an hour, into docs/performance.md; BENCH="get-4k peers" only these series, not written
# make bench-torn  a snapshot of a table while three writers insert a million rows, and torn ones healed, into docs/client.md
# make bench-hitratio  hit ratios of the eviction policies against libCacheSim, into docs/eviction.md: some minutes
# make bench-quotas  a million puts over 64 namespaces while their quotas change: usage against a recount
# make torture  2,000 kills and other harm, then the kills at named points: about an hour
# make lint     only the static checks
# make format   let ruff rewrite what it can
# make docs     write the generated pages of docs/
# make screenshots  the pictures of docs/operator-page.md
# make lock     pin the newest allowed versions in requirements.lock
# make packages the Debian packages that the tests use, where they are missing
# make clean    remove the environment and what the tools keep

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet

.PHONY: run test bench bench-full bench-torn bench-hitratio bench-quotas torture lint format docs screenshots lock packages clean

run: $(READY)
	@mkdir -p var
	@exec $(BIN)/rawblockd serve --device var/rawblockd.device --create --size 1GiB --host 127.0.0.1 --port 8790

test: lint packages
	@$(BIN)/python tests/run_suites.py

bench: $(READY)
	@$(BIN)/python -m bench.service --rows "$(ROWS)" --runs $(or $(RUNS),0)
	@$(BIN)/python -m bench.eviction_cost

bench-full: $(READY)
	@$(BIN)/python -m bench.service --full --series "$(BENCH)" --runs $(or $(RUNS),0) $(if $(BENCH),,--write-docs)

bench-torn: $(READY)
	@$(BIN)/python -m bench.torn_snapshot

bench-hitratio: $(READY)
	@$(BIN)/python -m bench.hit_ratio

bench-quotas: $(READY)
	@$(BIN)/python -m bench.quotas

torture: $(READY)
	@mkdir -p var
	@$(BIN)/rawblockd torture var/torture.device --minutes 1 --kills 2000 --seed "$$(date +%F)"
	@$(BIN)/python -m pytest -q --no-header tests/crash -k named_points

lint: $(READY)
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check --quiet .
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-logo --cache-dir .import_linter_cache

format: $(READY)
	@$(BIN)/ruff check --fix --quiet .
	@$(BIN)/ruff format .

docs: $(READY)
	@$(BIN)/python -m rawblockd.documents
	@$(BIN)/python -m tests.docs.format_tables
	@$(BIN)/python -m tests.operations.runbook_example

screenshots: $(READY)
	@tests/install_packages.sh chromium fonts-inter
	@$(BIN)/python -m tests.browser.screenshots

# Everything, the build backend too, comes from the lock, so that two machines test the same versions.
$(READY): pyproject.toml clients/python/pyproject.toml requirements.lock
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(PIP) install -r requirements.lock
	@$(PIP) install --no-deps --no-build-isolation --editable . --editable clients/python
	@touch $@

# A scratch environment resolves anew; only names and versions go into the lock.
lock:
	@set -e; scratch=$$(mktemp -d); trap 'rm -rf "$$scratch"' EXIT; \
	$(PYTHON) -m venv "$$scratch"; \
	"$$scratch/bin/python" -m pip --disable-pip-version-check --quiet install ".[dev]"; \
	"$$scratch/bin/python" -m pip --disable-pip-version-check freeze --exclude rawblockd --exclude rawblockd-client > requirements.lock

# Foreign signatures to refuse, loop devices and fault injection: the tests use the real tools.
PACKAGES := e2fsprogs xfsprogs btrfs-progs lvm2 fdisk cryptsetup-bin util-linux mount systemd python3-venv
# Clients of the build caches, beside those of the lock.
PACKAGES += bazel-bootstrap ccache curl gcc gradle
# The load generator of the bench is compiled.
PACKAGES += libc6-dev
# A real Prometheus reads the metrics and the alerts.
PACKAGES += prometheus
# A real browser looks at the operator page.
PACKAGES += chromium
# A real terminal for rawblockd top.
PACKAGES += tmux
# Certificates for TLS.
PACKAGES += openssl
packages:
	@tests/install_packages.sh $(PACKAGES)

clean:
	@rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
