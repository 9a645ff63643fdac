"""Learning curves with the memorise and grok steps.

C1 (embeddings induce the delay) is decided by the delay, test step minus train step, of embedding, one-hot and
scalar inputs over at least five seeds.
"""

from landscape.report.figures import main

if __name__ == "__main__":
    main("training_curves", __doc__)
