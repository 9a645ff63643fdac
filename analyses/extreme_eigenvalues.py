"""Extreme eigenvalues of every block over training.

C5 and C6 (curvature of E and W differs; their tops fall in order) are decided by lambda_max of E and W over steps;
C4 by lambda_min of E,W beside the control W,V and the saddle bound.
"""

from landscape.report.figures import main

if __name__ == "__main__":
    main("extreme_eigenvalues", __doc__)
