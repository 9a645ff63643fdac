"""Time and memory of `landscape` beside other tools: `python -m benchmarks` measures and reports."""

import os

# Read when NumPy and SciPy are loaded: one thread for every tool, as for torch.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
