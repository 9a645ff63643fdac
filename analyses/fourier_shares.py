"""Share of each frequency of the numbers' circle in the embedding, over steps.

Numbers of a network that groks lie on circles, so that few frequencies have all of the variance.
"""

from landscape.report.figures import main

if __name__ == "__main__":
    main("fourier_shares", __doc__)
