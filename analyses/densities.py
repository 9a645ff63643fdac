"""Spectral densities of the blocks and their Jensen-Shannon distances.

C5 (the curvature of E and W differs): how unlike the blocks' spectra are, beyond their top eigenvalues.
"""

from landscape.report.figures import main

if __name__ == "__main__":
    main("densities", __doc__)
