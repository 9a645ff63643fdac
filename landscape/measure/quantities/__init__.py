"""The quantities measured at a checkpoint. A module here that defines a `Quantity` adds it to the file and tables."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterable
from types import ModuleType

from landscape.measure.quantities.quantity import Quantity


def found_in(modules: Iterable[ModuleType]) -> tuple[Quantity, ...]:
    """All quantities of some modules in the order of their columns; one that another module imports counts once.

    Raises ValueError for two quantities with a dataset of one name.
    """
    values = (value for module in modules for value in vars(module).values())
    quantities = {id(value): value for value in values if isinstance(value, Quantity)}.values()
    names = [name for quantity in quantities for name in quantity.names]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ValueError(f"two quantities have the dataset {twice[0]!r}")
    return tuple(sorted(quantities, key=lambda quantity: quantity.place))


QUANTITIES = found_in(importlib.import_module(f"{__name__}.{module.name}") for module in pkgutil.iter_modules(__path__))
