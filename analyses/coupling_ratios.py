"""Coupling ratios kappa_i over training.

C4 (the bilinear coupling makes saddle points): the saddle index of E,W is the number of coupling ratios above 1 (F0).
"""

from landscape.report.figures import main

if __name__ == "__main__":
    main("coupling_ratios", __doc__)
