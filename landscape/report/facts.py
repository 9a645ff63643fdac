"""The facts that captions name, each in a line; docs/theory.md proves them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from landscape.models.embedding_mlp.blocks import CLAIM
from landscape.text import printable

if TYPE_CHECKING:
    from markupsafe import Markup

FACTS = {
    "F0": "The index counts coupling ratios: as many negative directions as κ_i above 1.",
    "F14": f"The saddle bound: λ_min of {CLAIM} is at least −σ_max(G), with ReLU and a convex loss.",
    "F15": "Constant tokens are a bias written as a product: they add its gradient norm to the singular values of G.",
}


def explained(text: object) -> Markup:
    """Text as HTML, in which the name of a fact says under the pointer what it states."""
    from markupsafe import Markup, escape

    def told(name: re.Match[str]) -> str:
        fact = FACTS.get(name[0])
        return f'<abbr title="{escape(fact)}">{name[0]}</abbr>' if fact else name[0]

    return Markup(re.sub(r"\bF\d+b?\b", told, escape(printable(text))))
