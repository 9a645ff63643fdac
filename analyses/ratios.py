"""Curvature and gradient ratios against their predictions.

C7 (Proposition 4.1) asks that they follow sigma_max(E)/sigma_max(W) and its square over all checkpoints.
"""

from landscape.report.figures import main

if __name__ == "__main__":
    main("ratios", __doc__)
