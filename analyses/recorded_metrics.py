"""Every metric that was recorded from another training loop, over steps."""

from landscape.report.figures import main

if __name__ == "__main__":
    main("recorded_metrics", __doc__)
