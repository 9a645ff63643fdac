"""The numbers in the planes of the embedding's largest frequencies.

At the last step; a circle that is run round in equal steps has R^2 = 1.
"""

from landscape.report.figures import main

if __name__ == "__main__":
    main("embedding_circles", __doc__)
