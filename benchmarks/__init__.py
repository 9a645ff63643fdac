"""What `landscape` costs beside what its users would run otherwise: `python -m benchmarks` measures and reports."""
