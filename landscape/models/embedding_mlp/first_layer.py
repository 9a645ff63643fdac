"""The first layer as tables T_k, one row a token: of a bilinear map T_k = E W_k^T, or free parameters themselves.

Both tell how the tables (token, h) come from parameters, to first and second order, for m directions at once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

Parts = dict[str, Tensor]


class Factors:
    """T_k = E W_k^T; E (token, d) is a parameter or a constant, W (h, s d).

    vocabulary, slots, h: numbers of tokens, slots and hidden units; names: the parameters that the tables come from.
    """

    def __init__(self, E: Tensor, W: Tensor) -> None:
        self.E, self.d = E, E.shape[1]
        self.W_k = W.split(self.d, dim=1)
        self.vocabulary, self.slots, self.h = len(E), len(self.W_k), len(W)
        self.names = frozenset({"E", "W"})

    def inputs(self, tokens: Tensor) -> Tensor:
        """What W is applied to at tokens (n, s), as (n, columns of W)."""
        return self.E[tokens].flatten(1)

    def table(self, k: int) -> Tensor:
        """The table of slot k, (token, h)."""
        found: Tensor = self.E @ self.W_k[k].T
        return found

    def moved(self, v: Mapping[str, Tensor], k: int, tokens: slice) -> Tensor:
        """How fast rows of the table of slot k move along directions v, (m, token, h), as new memory."""
        moves = [v["E"][:, tokens] @ self.W_k[k].T] if "E" in v else []
        if "W" in v:
            moves.append(self.E[tokens] @ self._slope(v, k).mT)
        found: Tensor = sum(moves[1:], start=moves[0])
        return found

    def gradients(
        self,
        v: Mapping[str, Tensor],
        rows: Sequence[str],
        moved: Mapping[int, Tensor],
        fixed: Mapping[int, int],
        total: Tensor,
        G: Sequence[Tensor],
    ) -> Parts:
        """The change along v of the gradients of `rows`.

        moved: the change of dL/dT_k (m, token, h) by slot; fixed: token by slot of those that always hold the same,
        whose one row changes by `total` (m, h); G: dL/dT_k (token, h) by slot.
        """
        out: Parts = {}
        if "E" in rows:
            dE = self.E.new_zeros(len(total), *self.E.shape)
            for k, W in enumerate(self.W_k):
                if k in moved:
                    dE += moved[k] @ W
                else:
                    dE[:, fixed[k]] += total @ W
                if "W" in v:
                    dE += G[k] @ self._slope(v, k)
            out["E"] = dE
        if "W" in rows:
            pieces = []
            for k in range(self.slots):
                piece = moved[k].mT @ self.E if k in moved else total[:, :, None] * self.E[fixed[k]]
                pieces.append(piece + G[k].T @ v["E"] if "E" in v else piece)
            out["W"] = torch.cat(pieces, dim=2)
        return out

    def _slope(self, v: Mapping[str, Tensor], k: int) -> Tensor:
        return v["W"][:, :, k * self.d : (k + 1) * self.d]


class Tables:
    """W = [T_1^T ... T_s^T], shape (h, s token): the tables are parameters; all else as of `Factors`."""

    def __init__(self, W: Tensor, slots: int) -> None:
        self.W, self.slots, self.h = W.view(len(W), slots, -1), slots, len(W)
        self.vocabulary = self.W.shape[2]
        self.names = frozenset({"W"})

    def inputs(self, tokens: Tensor) -> Tensor:
        return torch.nn.functional.one_hot(tokens, self.vocabulary).to(self.W).flatten(1)

    def table(self, k: int) -> Tensor:
        return self.W[:, k].T

    def moved(self, v: Mapping[str, Tensor], k: int, tokens: slice) -> Tensor:
        rows: Tensor = v["W"].unflatten(2, (self.slots, -1))[:, :, k, tokens]
        return rows.mT.clone(memory_format=torch.contiguous_format)

    def gradients(
        self,
        v: Mapping[str, Tensor],
        rows: Sequence[str],
        moved: Mapping[int, Tensor],
        fixed: Mapping[int, int],
        total: Tensor,
        G: Sequence[Tensor],
    ) -> Parts:
        if "W" not in rows:
            return {}
        dW = total.new_zeros(len(total), *self.W.shape)
        for k in range(self.slots):
            if k in moved:
                dW[:, :, k] = moved[k].mT
            else:
                dW[:, :, k, fixed[k]] = total
        return {"W": dW.flatten(2)}


def first_layer(params: Mapping[str, Tensor], slots: int, vectors: Tensor | None) -> Factors | Tables:
    """That of a network; vectors: constant inputs (token, d) in the place of E. Without E or these it is tables."""
    E = params.get("E", vectors)
    return Tables(params["W"], slots) if E is None else Factors(E, params["W"])
