"""The quantities measured at a checkpoint. A module here that defines a `Quantity` adds it to the file and tables."""

from __future__ import annotations

import importlib
import pkgutil

from landscape.analysis.quantities.quantity import Quantity

_MODULES = [importlib.import_module(f"{__name__}.{found.name}") for found in pkgutil.iter_modules(__path__)]
_FOUND = [value for module in _MODULES for value in vars(module).values() if isinstance(value, Quantity)]
QUANTITIES: tuple[Quantity, ...] = tuple(sorted(_FOUND, key=lambda quantity: quantity.place))
