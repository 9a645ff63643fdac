"""The additional tables of the file of a search for a critical point."""

from __future__ import annotations

from collections.abc import Iterable

from landscape.storage.schema import Field, Table

STATUS: dict[str, object] = {"flag_values": [0, 1, 2], "flag_meanings": "unfinished gradient-flat critical"}
POINT = (
    Field("status", (), "i1", "what the search for a critical point ended at", attrs=STATUS),
    Field("grad_norm", (), "f8", "gradient norm of the objective, all parameters"),
    Field("start_grad_norm", (), "f8", "gradient norm at the checkpoint"),
    Field("loss", (), "f8", "objective", "nat"),
    Field("start_loss", (), "f8", "objective at the checkpoint", "nat"),
    Field("flatness", (), "f8", "how flat H is along the gradient that is left", formula="|H g| / (|H| |g|)"),
    Field("distance", (), "f8", "distance from the checkpoint", formula="|theta - theta_checkpoint|_2"),
    Field("num_products", (), "i8", "Hessian-vector products of the search"),
)
SEARCH = (
    Field("step", (), "i8", "stored step that the search began at"),
    Field("checkpoint_crc32", (), "i8", "commit record of that checkpoint in the run file"),
    Field("radius", (), "f8", "radius of the trust region"),
    Field("largest", (), "f8", "radius of a restart"),
    Field("krylov_radius", (), "f8", "radius for which the Krylov space of this point was made; NaN: none yet"),
    Field("first", (), "f8", "gradient norm where the search began"),
    Field("norm", (), "f8", "largest |H| seen"),
    Field("at_restart", (), "f8", "gradient norm at the last restart"),
    Field("stalled", (), "i8", "steps in a row that gained little"),
    Field("restarts", (), "i8", "restarts that gained little"),
    Field("iterations", (), "i8", "steps tried"),
    Field("num_products", (), "i8", "Hessian-vector products so far"),
)


def critical_table(parameters: Iterable[Field]) -> Table:
    """The refined parameters and how they were found."""
    return Table("critical_point", "step", (*parameters, *POINT))


def search_table(parameters: Iterable[Field]) -> Table:
    """The state of the search in two slots, the newer of which counts (since schema 1.1)."""
    return Table("resume", "resume_slot", (*parameters, *SEARCH), newest="iterations")
