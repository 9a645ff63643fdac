"""Proposition 4.1's learning rate ratio over training.

C7 and C9: the ratio lr_E/lr_W that the proposition asks for, its factors, and how far f_E is from 1.
"""

from landscape.report.figures import main

if __name__ == "__main__":
    main("prop41_ratio", __doc__)
