"""What a run chooses by name: tasks, samplers, activations and optimisers.

Configs, `--help` and errors read the names from here, so nothing here imports numpy or torch before it computes.
"""
