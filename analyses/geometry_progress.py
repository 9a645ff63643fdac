"""Geometry of the embedding over training, beside accuracy.

Participation ratio, share of the key frequencies, restricted and excluded loss (arXiv 2301.05217).
"""

from landscape.report.figures import main

if __name__ == "__main__":
    main("geometry_progress", __doc__)
