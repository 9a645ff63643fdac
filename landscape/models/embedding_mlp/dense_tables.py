"""Dense Hessian blocks of the MLP whose tables are parameters, W = [T_1^T ... T_s^T]."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from landscape.models.embedding_mlp.closed_form import ClosedForm, Samples, by_token


class TableMLP(ClosedForm):
    """Each slot of a sample takes one column of W (h, s token), and b1 is a column that all samples take.

    Inputs z are the numbers of these columns: the Hessian by two columns is a sum over the samples that take both.
    """

    def _inputs(self, x: Tensor) -> tuple[Tensor, Tensor]:
        width = self.W.shape[1]
        columns = x + torch.arange(0, width, width // self.slots, device=x.device)
        pre = torch.nn.functional.embedding_bag(columns, self.W.T.contiguous(), mode="sum")
        return torch.cat([columns, torch.full_like(x[:, :1], width)], 1) if "b1" in self.biases else columns, pre

    def _add_slice(self, blocks: Mapping[str, Tensor], c: Samples, M: Tensor, at: slice) -> None:
        """H [hidden j, column a, hidden l, column b], of which each j and a has its turn once."""
        H = blocks["WW"][at]
        for taken in c.z.T:
            for a, of in by_token(taken):
                sums, some = self.V.new_zeros(H.shape[3], M[0].numel()), M[of].flatten(1)
                for columns in c.z[of].T:
                    sums.index_add_(0, columns, some)
                H[:, a] = sums.view(-1, *M[0].shape).permute(1, 2, 0)

    def _add_WV(self, H: Tensor, c: Samples) -> None:
        _, B = self._VD_and_B(c)
        j = torch.arange(self.h, device=H.device)
        for taken in c.z.T:
            for a, of in by_token(taken):
                H[:, a] += (B[of].flatten(1).T @ c.phi[of]).view(self.C, self.h, -1).transpose(0, 1)
                H[j, a, :, j] += c.D[of].T @ c.r[of]
