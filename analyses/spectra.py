"""Full spectra of the dense blocks.

C4 (the bilinear coupling makes saddle points): single-layer blocks of a ReLU net have no negative eigenvalue (F8),
joint blocks do.
"""

from landscape.report.figures import main

if __name__ == "__main__":
    main("spectra", __doc__)
