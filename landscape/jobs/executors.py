"""Work off jobs under leases: in worker processes, or one after the other in this one."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from landscape.errors import LandscapeError
from landscape.jobs.jobs import Job, execute
from landscape.jobs.journal import Journal
from landscape.jobs.leases import Holder, LeasedError
from landscape.workers import Reason, Workers

Outcome = tuple[Job, Reason | None]
"""A job, and why it failed."""


class Here:
    """Calls in this process, one after the other, so that a debugger can stop in them."""

    def run(self, function: Callable[..., object], calls: Iterable[tuple[Any, ...]]) -> Iterator[tuple[Any, ...]]:
        """As of `Workers`; an error that is no LandscapeError is raised."""
        for call in calls:
            reason = None
            try:
                function(*call)
            except LandscapeError as error:
                reason = str(error), error.hint
            yield reason, *call


def execute_all(jobs: Sequence[Job], pool: Workers | Here, holder: Holder, journal: Journal) -> Iterator[Outcome]:
    """Carry out jobs as the pool has room; yields each as it ends, and a failed group in parts."""
    parts: list[Job] = []
    for batch in (jobs, parts):
        refused: list[Outcome] = []
        for reason, job in pool.run(execute, _leased(batch, holder, refused)):
            for path in job.outputs:
                holder.release(path.name)
            if reason and job.split():
                # Retry the members one by one, so that only the failing one fails.
                parts += job.split()
            else:
                _note(journal, job, reason)
                yield job, reason
            yield from _drained(journal, refused)
        yield from _drained(journal, refused)


def _leased(jobs: Iterable[Job], holder: Holder, refused: list[Outcome]) -> Iterator[tuple[Job]]:
    """The jobs that can be done now, each with its leases, which are taken when its turn comes."""
    for job in jobs:
        with contextlib.ExitStack() as taken:
            try:
                for path in job.outputs:
                    holder.take(path.name)
                    taken.callback(holder.release, path.name)
            except LandscapeError as error:
                is_busy = isinstance(error, LeasedError)
                if is_busy and job.split():
                    # Others may be working on a part of it.
                    yield from _leased(job.split(), holder, refused)
                else:
                    refused.append((job, (str(error), error.hint)))
                continue
            taken.pop_all()
        yield (job,)


def _drained(journal: Journal, refused: list[Outcome]) -> Iterator[Outcome]:
    while refused:
        job, reason = refused.pop()
        _note(journal, job, reason)
        yield job, reason


def _note(journal: Journal, job: Job, reason: Reason | None) -> None:
    for path in job.outputs:
        journal.note(path.name, "failed" if reason else "done", reason)
