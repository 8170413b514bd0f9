# make quickstart           train a small DNT by momentum SGDW on real text, sample from it and draw its loss
# make quickstart-vision    do the same with a small V-DNT on images of digits
# make test                 run the linter and the tests, without those that take minutes
# make test-long            run the tests that take minutes
# make test-oldest          run the main tests with the oldest PyTorch and Python supported; 8 GB for .venv-oldest
# make setup                set up .venv with all packages, and do nothing else
# make results              make the pages and pictures of results/ from the raw numbers in results/csv/, in a minute
# make gpu                  measure this machine's GPU, in at most nine minutes, into results/gpu/. VENV=no installs nothing and uses PYTHON,
#                           which must have PyTorch and NumPy: make gpu VENV=no PYTHON=python3
# Each target first sets up .venv, once, with the packages that it needs. PYTHON=python3.12 chooses the interpreter; ARGS="--max_iters=100" goes to train.py.
# A stopped quickstart continues when called again. ARGS="--init_from=scratch --overwrite=True" restarts it.

PYTHON ?= python3
ARGS ?=
BIN = .venv/bin
OLDEST_PYTHON ?= python3.10
OLDEST_TORCH = 2.10.0
OLDEST_VENV ?= .venv-oldest
VENV ?= yes

.PHONY: setup quickstart quickstart-vision test test-long test-oldest results gpu

setup: .venv/installed-dev
	@echo 'ready. Next, for example:'
	@echo '    make quickstart'

quickstart: .venv/installed data/pycode/meta.json
	$(BIN)/python train.py config/train_quick.py --init_from=auto $(ARGS)
	$(BIN)/python sample.py --out_dir=out-quick --num_samples=1
	$(BIN)/python -m lab.plot out-quick
	@echo 'Next, for example:'
	@echo "    $(BIN)/python sample.py --out_dir=out-quick --start='def main(' --temperature=0.7"
	@echo '    $(BIN)/python train.py config/train_quick.py config/arch/s1.py --out_dir=out-s1'
	@echo '    $(BIN)/python -m lab.plot out-quick out-s1'

quickstart-vision: .venv/installed          # with matplotlib comes Pillow
	$(BIN)/python -m vision.train config/train_quick_vision.py --init_from=auto $(ARGS)
	$(BIN)/python -m lab.plot out-quick-vision
	@echo 'Next, for example:'
	@echo '    $(BIN)/python -m vision.train config/train_quick_vision.py config/arch/s1.py --out_dir=out-vision-s1'
	@echo '    $(BIN)/python -m lab.plot out-quick-vision out-vision-s1'

test: .venv/installed-dev
	$(BIN)/ruff check .
	CUDA_VISIBLE_DEVICES= $(BIN)/python -m pytest -q -n auto --dist worksteal

test-long: .venv/installed-dev
	CUDA_VISIBLE_DEVICES= $(BIN)/python -m pytest -q -n auto --dist worksteal -m long --durations=10

test-oldest: $(OLDEST_VENV)/installed
	CUDA_VISIBLE_DEVICES= $(OLDEST_VENV)/bin/python -m pytest -q -n auto test_model.py tests/test_checkpoint.py \
		tests/test_configurator.py tests/test_optim.py tests/test_train.py tests/test_fsdp.py tests/test_golden.py

results: .venv/installed-lab
	$(BIN)/python results/pages.py

ifeq ($(VENV),no)
gpu:
	test -e data/pycode/meta.json || $(PYTHON) data/pycode/prepare.py
	bash lab/gpu.sh $(PYTHON)
else
gpu: .venv/installed data/pycode/meta.json
	bash lab/gpu.sh $(BIN)/python
endif

data/%/meta.json: data/%/prepare.py .venv/installed
	$(BIN)/python $<

.venv/installed: requirements.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10) and "error: Python 3.10 or later is needed, this is %s: make PYTHON=python3.x" % sys.version.split()[0])'
	@$(PYTHON) -m venv .venv || { echo 'error: python3 -m venv failed; on Debian and Ubuntu, apt install python3-venv' >&2; exit 1; }
	@echo 'installing requirements.txt into .venv, once: some minutes, PyTorch is large'
	@$(BIN)/python -m pip install -q --disable-pip-version-check -r requirements.txt
	@touch $@

.venv/installed-%: requirements-%.txt .venv/installed
	@echo 'installing $< into .venv, once'
	@$(BIN)/python -m pip install -q --disable-pip-version-check -r $<
	@touch $@

.venv/installed-dev: requirements-lab.txt

# Only PyTorch and Python are the oldest: other packages have the versions in the requirements, the newest that are known to work.
$(OLDEST_VENV)/installed: requirements.txt requirements-lab.txt requirements-dev.txt
	@$(OLDEST_PYTHON) -m venv $(OLDEST_VENV)
	@echo 'installing PyTorch $(OLDEST_TORCH) into $(OLDEST_VENV), once: 8 GB'
	@sed -E '/^-r/d; s/^torch==.*/torch==$(OLDEST_TORCH)/' $^ | $(OLDEST_VENV)/bin/python -m pip install -q --disable-pip-version-check -r /dev/stdin
	@touch $@
