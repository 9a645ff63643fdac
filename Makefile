# python >= 3.11 and make are all that is needed; everything else goes into .venv
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
TEST_INSTALLED := $(VENV)/.installed-test
# Steps that `make demo` trains at most, and checkpoints that it analyses.
DEMO_STEPS ?= 3000
DEMO_CHECKPOINTS ?= 12

.PHONY: install demo demo-transformer pictures test test-all test-fast lint bench bench-full studies studies-claims article torture docs clean

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

# What the primary tests of the article read, their verdicts, and the article: 2½ hours on two cores. Resumes where it stopped.
studies: $(TEST_INSTALLED)
	$(call studies,quick,article)
	$(call studies,mid,article)
	$(MAKE) article

# What stands beside them: the paper's claims, and settled plateaus at the paper's size. Most of a day on two cores.
studies-claims: $(TEST_INSTALLED)
	$(call studies,quick,claims)
	$(call studies,mid,claims)
	$(call studies,paper,claims)
	$(call studies,paper,article)
	$(MAKE) article

# Verdicts, tables, figures and the article from the CSV files of reports/reference.
article: $(TEST_INSTALLED)
	$(BIN)/python analyses/verdicts.py
	$(BIN)/python analyses/article.py

# Exit code 3: done, but a search did not converge, which the files say where it is so.
define studies
	for study in studies/$(1)/$(2)/*.json; do \
		$(BIN)/landscape sweep $$study --out checkpoints/trial/$(1) || test $$? -eq 3 || exit 1; done
	$(BIN)/python analyses/collect.py checkpoints/trial/$(1)
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
