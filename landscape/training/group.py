"""Members at the same step: their steps, records and metrics."""

from __future__ import annotations

import contextlib
import math
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from landscape import models
from landscape.choices.samplers import SAMPLERS
from landscape.curvature.eigsh import eigsh
from landscape.curvature.objective import Objective
from landscape.curvature.operators import HessianOperator
from landscape.errors import LandscapeError, NumericsError
from landscape.files.runs import Arrays
from landscape.models.embedding_mlp.networks import MLP, singular_values
from landscape.models.networks import Batch, scores
from landscape.models.tasks import TRAIN
from landscape.progress import Bar
from landscape.training.edge import edge_ratio
from landscape.training.kicks import held, kick, without
from landscape.training.member import Member
from landscape.training.optimizers import Optimizer
from landscape.training.tables import SIGMA

_SHOWN = {"loss": "train_loss", "train": "train_accuracy", "test": "test_accuracy"}


class Group:
    """Members at the same step, which are trained side by side."""

    def __init__(self, members: Sequence[Member], states: Sequence[dict[str, Any]], device: torch.device) -> None:
        self.members, self.config, self.device = members, members[0].config, device
        self.step = int(states[0]["step"])
        tokens, labels = (_in_common([getattr(m.data, name) for m in members]) for name in ("tokens", "labels"))
        self.networks = models.make_networks(self.config, states, tokens, labels, device)
        self.optimizer = Optimizer(
            [m.config for m in members],
            self.networks,
            *(self.networks.stack(states, moment) for moment in ("m_", "v_")),
        )
        self._set_rates()
        self.train, self.test = (
            self.networks.batch(np.stack(pairs)) for pairs in ([m.train for m in members], [m.test for m in members])
        )
        # Where the directions were found that steps avoid, and they themselves, which a resumed run finds again.
        self.anchor = self.networks.stack(states, "held_").to(device) if self.config.kick == "held" else None
        self.held: list[Tensor] = []
        self.has_E = "E" in self.networks.shapes
        if self.has_E:
            self.grad_norm = torch.from_numpy(np.stack([s["grad_norm"] for s in states])).to(device)

    def run(self, until: int | None, stop: threading.Event, bar: Bar) -> list[Member]:
        """Train to step `until`, a stop signal, or the end of some members, which are returned."""
        # A sixth of a small step is bookkeeping for autograd, which nothing here asks for.
        with torch.inference_mode(self.networks.by_hand):
            while not stop.is_set() and self.step != until:
                finished = self._record(bar)
                if finished:
                    return finished
                self._advance()
                # Several groups share the bar.
                with bar.get_lock():
                    bar.update(len(self.members))
        return []

    def _record(self, bar: Bar) -> list[Member]:
        """Write the records due at this step; returns the members that end with it.

        A run diverges at the first record whose training loss or parameters are not finite. Its row of metrics is
        written, its parameters are not.
        """
        is_due = [self.step % m.config.metrics_every == 0 for m in self.members]
        ends = [m.is_last(self.step) for m in self.members]
        stored = [end or self.step in m.schedule for end, m in zip(ends, self.members, strict=True)]
        if not any(is_due) and not any(stored):
            return []
        is_finite = self.networks.flat.isfinite().all(1).tolist()
        if any(is_due) or any(ends) or not all(is_finite):
            rows = self.metrics()
            shown = {k: f"{np.mean([row[v] for row in rows]):.3g}" for k, v in _SHOWN.items()}
            bar.set_postfix(shown, refresh=False)
            for i, (member, row) in enumerate(zip(self.members, rows, strict=True)):
                # As alone: another member's record is none of this one's.
                if not (is_due[i] or ends[i] or (stored[i] and not is_finite[i])):
                    continue
                member.has_diverged = not (is_finite[i] and math.isfinite(row["train_loss"]))
                member.writer.append_to("metrics", self.step, row)
                before = member.steps
                member.decide_stop(self.step, row["test_accuracy"])
                with bar.get_lock():
                    bar.total -= before - (self.step if member.has_diverged else member.steps)
        for i, member in enumerate(self.members):
            if is_finite[i] and (stored[i] or member.is_last(self.step)):
                member.commit(self.step, self.state(i), self._tokens(i))
        return [m for m in self.members if m.has_diverged or m.is_last(self.step)]

    def _advance(self) -> None:
        """One optimiser step."""
        config = self.config
        if SAMPLERS[config.sampler].follow and self.step % config.sampler_every == 0:
            self.networks.backward(self.train)
            norms = self.networks.grads["E"].norm(dim=2).cpu().double().numpy()
            for member, norm in zip(self.members, norms, strict=True):
                if np.isfinite(norm).all():
                    member.sampler.refresh(norm)
        if self.step % config.lr_ratio_every == 0:
            self._measure_lr_ratios()
        since = self.step % config.kick_every
        is_kicked = config.kick != "none" and self.step - since >= config.kick_from
        if is_kicked and since == 0:
            self._kick()
        if 0 < self.step < config.warmup or 0 < self.step == config.freeze_from:
            self._set_rates()
        batch = self._draw()
        for member, seen in zip(self.members, batch.seen, strict=True):
            member.count += seen
        self.networks.backward(batch)
        if self.has_E and not config.is_frozen("E", self.step):
            self.grad_norm += torch.linalg.vector_norm(self.networks.grads["E"], dim=2)
        before = self.networks.flat.clone() if self.anchor is not None and is_kicked else None
        self.step += 1
        self.optimizer.step(self.step)
        if before is not None:
            self._hold(before)

    def _draw(self) -> Batch:
        drawn = [member.draw() for member in self.members]
        pairs = [d for d in drawn if d is not None]
        return self.networks.batch(np.stack(pairs)) if pairs else self.train

    def _set_rates(self) -> None:
        rates = [{name: m.rate(name, self.step) for name in self.networks.shapes} for m in self.members]
        self.optimizer.set_rates(rates)

    def _measure_lr_ratios(self) -> None:
        """Set lr_E / lr_W of the members that measure it.

        The curvature policy equalises lr^2 * lambda_max, the second-order loss change of a step of size lr. In a
        bilinear least-squares model (F1) this is sigma_max(E) / sigma_max(W), as in Proposition 4.1. Without a finite
        positive ratio, as at E = 0 or W = 0, the ratio keeps its value.
        """
        measured = [i for i, m in enumerate(self.members) if isinstance(m.config.lr_ratio, str)]
        if not measured:
            return
        follow = any(self.members[i].config.lr_ratio == "auto" for i in measured)
        losses = scores(self.networks.logits(self.train), self.train.labels)[0].tolist() if follow else []
        for i in measured:
            member = self.members[i]
            if member.config.lr_ratio == "prop41":
                of = (self.networks.params["E"][i], self.networks.reader()[i])
                sigma_E, sigma_W = (float(largest_singular_value(matrix)) for matrix in of)
                ratio = prop41_ratio(sigma_E, sigma_W, member.f_E(self.step) if self.step else 1.0)
            elif member.config.lr_ratio == "auto":
                # Before the first step there are no second moments, which the bound needs.
                bound = self._edge_ratio(i) if self.step else math.inf
                ratio = member.climb.next(member.lr_ratio, losses[i], bound)
            else:
                ratio = self._curvature_ratio(i)
            if 0 < ratio < math.inf:
                member.lr_ratio = ratio
        self._set_rates()

    @torch.inference_mode(False)
    def _curvature_ratio(self, i: int) -> float:
        """sqrt(lambda_max(H_WW) / lambda_max(H_EE)) of a member, both to 1 %; NaN where there is none."""
        params = {name: part[i] for name, part in self.networks.params.items()}
        config, data = self.members[i].config, self.members[i].data
        tokens, labels = (torch.from_numpy(array).to(self.device, torch.int64) for array in data.subset(TRAIN))
        try:
            whole = HessianOperator(Objective(MLP(config).to(self.device), tokens, labels), params)
            lambda_E, lambda_W = (
                float(eigsh(whole.block([n]), 1, "highest", "lanczos", rtol=1e-2, seed=config.seed).values[0, 0])
                for n in ("E", "W")
            )
        except (np.linalg.LinAlgError, torch.linalg.LinAlgError, LandscapeError):  # type: ignore[attr-defined]
            # Numbers out of range: the next record says that the run diverged.
            return math.nan
        return math.sqrt(lambda_W / lambda_E) if lambda_E > 0 and lambda_W > 0 else math.nan

    @torch.inference_mode(False)
    def _edge_ratio(self, i: int) -> float:
        """The ratio at the bound that E's edge of stability sets a member; NaN where its numbers are out of range."""
        member = self.members[i]
        theta = {name: part[i].double().clone() for name, part in self.networks.params.items()}
        v = self.networks.parts(self.optimizer.v)["E"][i].double().clone()
        try:
            # A tied E unembeds, too, which moves every row at every step.
            drawn = torch.from_numpy(member.count > (-1 if member.config.tied else 0)).to(v.device)
            return edge_ratio(member.config, vars(member.data), theta, v, self.step, drawn)
        except (np.linalg.LinAlgError, LandscapeError):
            # The next record says that the run diverged.
            return math.nan

    @torch.inference_mode(False)
    def _kick(self) -> None:
        """Move the members that are finite; the next record says of the others that they diverged."""
        if self.anchor is not None:
            self.anchor, self.held = self.networks.flat.clone(), []
            return
        for i, member in enumerate(self.members):
            theta = {name: part[i].double().clone() for name, part in self.networks.params.items()}
            with contextlib.suppress(np.linalg.LinAlgError, NumericsError):
                for name, piece in kick(member.config, vars(member.data), theta, self.step).items():
                    self.networks.params[name][i] = theta[name] + piece

    @torch.inference_mode(False)
    def _hold(self, before: Tensor) -> None:
        """Take out of the step since `before` what goes along the directions that were found last."""
        if not self.held and self.anchor is not None:
            at = [
                {n: part[i].double().clone() for n, part in self.networks.parts(self.anchor).items()}
                for i, _ in enumerate(self.members)
            ]
            self.held = [self._directions(m, theta) for m, theta in zip(self.members, at, strict=True)]
        start = self.networks.parts(before)
        for i, directions in enumerate(self.held):
            steps = {n: part[i].double() - start[n][i] for n, part in self.networks.params.items()}
            for name, step in without(directions, steps).items():
                self.networks.params[name][i] = start[name][i] + step

    def _directions(self, member: Member, theta: dict[str, Tensor]) -> Tensor:
        """What steps avoid; nothing where numbers are out of range: the next record says that the run diverged."""
        try:
            return held(member.config, vars(member.data), theta)
        except (np.linalg.LinAlgError, NumericsError):
            return theta["E"].new_zeros(sum(theta[name].numel() for name in ("E", "W")), 0)

    def _sigma(self) -> dict[str, list[float]]:
        """Largest singular values of E and W by member."""
        params = self.networks.params
        return {name: largest_singular_value(params[name]).tolist() for name in SIGMA if name in params}

    def metrics(self) -> list[dict[str, float]]:
        """One row of /metrics a member."""
        columns: dict[str, list[float]] = {}
        on_train, on_test = self.networks.backward(self.train), self.networks.logits(self.test)
        for part, batch, logits in (("train", self.train, on_train), ("test", self.test, on_test)):
            losses, shares = scores(logits, batch.labels)
            columns[f"{part}_loss"], columns[f"{part}_accuracy"] = losses.tolist(), shares.tolist()
        weights, gradient = self.networks.params, self.networks.grads
        for name, shape in self.networks.shapes.items():
            if len(shape) == 2:
                columns[f"grad_norm_{name}"] = gradient[name].norm(dim=(1, 2)).tolist()
                columns[f"weight_norm_{name}"] = weights[name].norm(dim=(1, 2)).tolist()
        columns |= {f"sigma_max_{name}": values for name, values in self._sigma().items()}
        columns |= {name: values.tolist() for name, values in self.networks.measures().items()}
        rows = []
        for i, member in enumerate(self.members):
            row = {name: values[i] for name, values in columns.items()}
            rest = member.rate("W", self.step)
            row |= {"lr_E": member.rate("E", self.step), "lr_W": rest, "lr": rest, "f_E": member.f_E(self.step)}
            if "E" in weights and "W" in weights:
                row["prop41_ratio"] = prop41_ratio(row["sigma_max_E"], row["sigma_max_W"], row["f_E"])
            rows.append(row)
        return rows

    def state(self, i: int) -> dict[str, Any]:
        """A member's row of /resume: parameters by name, moments m_NAME and v_NAME, and its own state."""
        optimizer = self.optimizer
        flats = [("", self.networks.flat), ("m_", optimizer.m), ("v_", optimizer.v)]
        if self.anchor is not None:
            flats.append(("held_", self.anchor))
        tensors = {
            prefix + name: part[i].cpu().numpy()
            for prefix, flat in flats
            for name, part in self.networks.parts(flat).items()
        }
        accumulated = {"grad_norm": self.grad_norm[i].cpu().numpy()} if self.has_E else {}
        return {"step": self.step, **accumulated, **tensors, **self.members[i].state()}

    def _tokens(self, i: int) -> Arrays:
        tokens: Arrays = {"count": self.members[i].count}
        if self.has_E:
            E = self.networks.params["E"][i]
            tokens["embedding_norm"] = E.norm(dim=1).cpu().double().numpy()
            tokens["grad_norm"] = self.grad_norm[i].cpu().numpy()
        return tokens


def largest_singular_value(matrices: Tensor) -> Tensor:
    """sigma_max of each matrix (..., m, n), from the smaller Gram matrix in float64; NaN where not all is finite."""
    matrices = matrices.double()
    is_tall = matrices.shape[-2] > matrices.shape[-1]
    return singular_values(matrices.mT @ matrices if is_tall else matrices @ matrices.mT)[..., -1]


def prop41_ratio(sigma_E: float, sigma_W: float, f_E: float) -> float:
    """(sigma_max(E) / sigma_max(W)) * (f_W / f_E) with f_W = 1 (arXiv 2505.15624, Proposition 4.1); NaN for W = 0."""
    return sigma_E / sigma_W / f_E if sigma_W else math.nan


def _in_common(arrays: Sequence[NDArray[Any]]) -> NDArray[Any]:
    """An array that all members have, once; else those of each, (member, ...): seeds draw other places of a text."""
    first, *others = arrays
    return first if all(np.array_equal(first, other) for other in others) else np.stack(arrays)
