"""One picture of a run: circles of the embedding above frequencies, coupling, saddle index and accuracy over steps.

It takes the run's geometry file and its Hessian file.
"""

from landscape.report.figures import main

if __name__ == "__main__":
    main("timeline", __doc__)
