"""The steps of a run that its file has rows of."""

from __future__ import annotations

import math
from collections.abc import Sequence

from landscape.config import TrainConfig
from landscape.errors import ConfigError
from landscape.files.rows import ROWS
from landscape.options import flag_of

SCHEDULE = ("steps", "metrics_every", "checkpoint_every", "checkpoint_log", "checkpoint_at")
"""Options that give the steps of checkpoints and metrics."""


def checkpoint_schedule(config: TrainConfig) -> list[int]:
    """All steps that get a checkpoint, including the first and the last.

    The log-spaced steps do not depend on the run's length, so that a longer run has those of a shorter one. Raises
    ConfigError for a rule that gives more checkpoints than a file can hold.
    """
    decades = math.log10(config.steps or 1)
    asked = {
        "checkpoint_every": config.steps // config.checkpoint_every if config.checkpoint_every else 0,
        "checkpoint_log": math.ceil(decades * config.checkpoint_log),
    }
    for rule, count in asked.items():
        if count > ROWS:
            raise ConfigError(
                f"{rule} {getattr(config, rule)} asks for {count:,} checkpoints; files have at most {ROWS:,}",
                f"{'lower' if rule == 'checkpoint_log' else 'raise'} {flag_of(rule)}, or lower --steps",
            )
    wanted = {0, config.steps, *config.checkpoint_at}
    if config.checkpoint_every:
        wanted.update(range(0, config.steps, config.checkpoint_every))
    wanted.update(round(10 ** (i / config.checkpoint_log)) for i in range(asked["checkpoint_log"]))
    return sorted(step for step in wanted if step <= config.steps)


def unrecorded(recorded: Sequence[int], every: int) -> list[int]:
    """The steps of the schedule before the last recorded one without metrics.

    Damage and its repair leave some, and so does a run that went on at a smaller `metrics_every`.
    """
    return sorted({*range(0, recorded[-1], every)}.difference(recorded)) if recorded else []


def gaps(steps: Sequence[int]) -> str:
    """What to say of such steps; empty if there are none."""
    more = f" and {len(steps) - 1:,} more of its schedule" if len(steps) > 1 else ""
    return f"no metrics at step {steps[0]:,}{more}, where an event may have been" if steps else ""
