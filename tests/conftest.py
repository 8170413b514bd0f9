"""Settings that hold for all tests. test_model.py, which stands alone, has what it needs of them itself."""
import os
import signal
import tempfile

os.environ['OMP_NUM_THREADS'] = '1'     # before PyTorch is imported, and for processes: tests share the machine's cores
os.environ['TRANSFORMERS_VERBOSITY'] = 'error'            # as our files set it before they import transformers
signal.signal(signal.SIGHUP, signal.SIG_DFL)            # nohup ignores it, and our scripts then do too
if 'HF_MODULES_CACHE' not in os.environ:                # where transformers keeps the code of models
    code_of_models = tempfile.TemporaryDirectory()
    os.environ['HF_MODULES_CACHE'] = code_of_models.name

import pytest  # noqa: E402
import torch  # noqa: E402
from helpers import write_walk  # noqa: E402

torch.set_num_threads(1)                                # tensors this small gain nothing from more


@pytest.fixture(scope='module')
def place(tmp_path_factory):
    """A folder to run in, with data/tiny of helpers.TINY."""
    folder = tmp_path_factory.mktemp('place')
    write_walk(folder)
    return folder
