"""Excess index of every pair of blocks over training.

What a coupling adds to the saddle indices that its two blocks have by themselves, and its share of the joint index.
"""

from landscape.report.figures import main

if __name__ == "__main__":
    main("excess_index", __doc__)
