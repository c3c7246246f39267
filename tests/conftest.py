"""One thread for torch in every test and every worker: two cores are shared by all."""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
