"""Eigenspaces from one analysed step to the next, and sharpness against the edge of stability.

C6 (training reaches 100 % when W's top eigenvalue starts to fall): whether the top directions stay the same.
"""

from landscape.report.figures import main

if __name__ == "__main__":
    main("tracking", __doc__)
