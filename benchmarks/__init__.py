"""Time and memory of `landscape` beside other tools: `python -m benchmarks` measures and reports."""
