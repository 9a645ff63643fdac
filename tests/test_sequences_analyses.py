"""Any sequence of analyses and searches, kills and Ctrl-C keeps what was acknowledged and ends like a fresh one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from faults import Tally
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sequences_analyses import Critical, Fault, Hessian, Report, Sweep, Truth, apart, here, one


@pytest.fixture(scope="module")
def truth(tmp_path_factory: pytest.TempPathFactory) -> Truth:
    """The undisturbed analyses. Read only."""
    return Truth(tmp_path_factory.mktemp("truth"))


FAULTS = st.one_of(
    st.none(),
    st.builds(Fault, kill=st.booleans(), at=st.integers(1, 400)),
    st.builds(Fault, kill=st.booleans(), at=st.integers(1, 40)),
)


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "examples"), [(Hessian, 60), (Critical, 20)])
def test_any_sequence(kind: Any, examples: int, truth: Truth) -> None:
    """Commands with growing steps, blocks and products, overwritten now and then, stopped at any change of a file."""

    @settings(max_examples=examples, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
    @given(st.data())
    def sequences(data: st.DataObject) -> None:
        counts = Tally("sequences")
        one(kind, truth, counts, lambda of: data.draw(st.sampled_from(of)), here, lambda: data.draw(FAULTS))
        assert not counts.said

    sequences()


@pytest.mark.slow
@pytest.mark.parametrize("kind", [Hessian, Critical, Report, Sweep])
@pytest.mark.parametrize("kill", [True, False])
def test_a_process_that_is_stopped(kind: Any, kill: bool, truth: Truth, tmp_path: Path) -> None:
    """SIGKILL and Ctrl-C at growing numbers of seconds."""
    counts, after = Tally("sequences"), iter([0.05, 0.2, 0.5, 1.0, 2.0, 4.0])
    one(kind, truth, counts, lambda of: of[-1], apart, lambda: Fault(kill, after=next(after)))
    assert not counts.said
