"""Saddle index of every block over training.

C4 (the bilinear coupling makes saddle points) is decided by the inertia of E, W and E,W, with tolerance and gradient
norm, beside the control W,V.
"""

from landscape.report.figures import main

if __name__ == "__main__":
    main("saddle_index", __doc__)
