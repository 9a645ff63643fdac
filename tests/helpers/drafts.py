"""Figures that nobody looks at."""

from __future__ import annotations

from typing import Any

DRAFT: dict[str, Any] = {"FORMATS": ("png",), "LAYOUT": None}
"""Of `landscape.report.style`. PDF and SVG double the time of a report, and half of what is left is its layout."""
