"""Embedding norms by token frequency.

C2 (rare tokens stagnate) is decided by the norms and gradients of frequent and rare tokens over steps, under skewed
sampling, and by their vanishing without weight decay.
"""

from landscape.report.figures import main

if __name__ == "__main__":
    main("embedding_norms", __doc__)
