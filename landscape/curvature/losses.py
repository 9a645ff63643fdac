"""Losses that keep their digits, and torch's own in whatever form they are called."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn._reduction import legacy_get_string
from torch.overrides import TorchFunctionMode

from landscape.errors import ArgumentError

IGNORED = -100
"""The target of samples and tokens that do not count, as in torch.nn.functional.cross_entropy."""


def cross_entropy(logits: Tensor, labels: Tensor, label_smoothing: float = 0.0, ignore_index: int = IGNORED) -> Tensor:
    """Cross-entropy of each sample or token, with full relative precision at any loss.

    It is log1p(sum_{c != t} exp(z_c - z_t)) + z_t - z_y, where t is the likeliest class. Unlike -log softmax it keeps
    its digits in the value and in both derivatives.

    Args:
        logits: (..., C).
        labels: class indices (...).
        label_smoothing: s puts 1 - s on the label and s/C on every class, as in torch.
        ignore_index: label of samples that do not count.

    Returns:
        The loss of each sample (...), 0 where the label is ignore_index.

    Raises:
        ArgumentError: for anything but one class index of at least two classes.
    """
    if labels.is_floating_point() or labels.dtype == torch.bool or labels.shape != logits.shape[:-1]:
        raise ArgumentError(
            f"cross_entropy of logits {tuple(logits.shape)} and labels {tuple(labels.shape)}, {labels.dtype}",
            "labels are class indices, integers of shape logits.shape[:-1], such as labels[:, 0] of (N, 1); for "
            "probabilities take torch.nn.CrossEntropyLoss",
        )
    if logits.shape[-1] < 2:
        raise ArgumentError(
            "cross_entropy of one class is 0 whatever the parameters",
            "for binary labels take torch.nn.BCEWithLogitsLoss",
        )
    counts = labels != ignore_index
    if not _is_wrapped(labels):
        if logits.device.type == "cpu" and bool(counts.any()):
            require_labels(labels[counts], logits.shape[-1])
        Evaluation.count("none", lambda: float(counts.sum()), counts.numel())
    index = labels.where(counts, 0).long()[..., None]
    # No derivative has a p - p^2 of the likeliest class: it comes from those of the others, of which none exceeds 1/2.
    highest, top = logits.max(-1, keepdim=True)
    apart = logits - highest
    others = apart.scatter(-1, top, -torch.inf)
    # Where the label is the likeliest class, a gradient of 1 - 1 + p would pass through the difference.
    right = others.gather(-1, index).masked_fill(index == top, 0.0)[..., 0]
    hard = others.exp().sum(-1).log1p() - right
    values = hard + label_smoothing * (right - apart.mean(-1)) if label_smoothing else hard
    return values.where(counts, 0.0)


def mse(outputs: Tensor, targets: Tensor) -> Tensor:
    """Squared error of each sample, averaged over the outputs.

    Args:
        outputs, targets: (N, ...).

    Returns:
        The loss of each sample (N,).

    Raises:
        ArgumentError: for two different shapes.
    """
    require_one_shape("mse", outputs, targets)
    return (outputs - targets).square().reshape(len(outputs), -1).mean(1)


def require_labels(labels: Tensor, classes: int) -> None:
    """Raise ArgumentError for class indices outside 0 ... classes - 1."""
    low, high = (int(x) for x in labels.aminmax())
    if low < 0 or high >= classes:
        raise ArgumentError(
            f"labels run from {low} to {high}; the model has {classes} classes, 0 to {classes - 1}",
            f"number the classes from 0; label {IGNORED}, or that of ignore_index, what does not count",
        )


def require_one_shape(name: str, outputs: Tensor, targets: Tensor) -> None:
    """Raise ArgumentError where outputs and targets would be broadcast against each other."""
    if outputs.shape != targets.shape:
        column = outputs.shape == (*targets.shape, 1) or targets.shape == (*outputs.shape, 1)
        hint = "give targets[:, None] for outputs (N, 1)" if column else "give both the same shape"
        raise ArgumentError(
            f"{name} of outputs {tuple(outputs.shape)} and targets {tuple(targets.shape)}: each output would meet "
            "other samples' targets",
            hint,
        )


class Evaluation(TorchFunctionMode):
    """Context in which a model and a loss are evaluated, whatever they call.

    torch's log_softmax, cross_entropy and binary_cross_entropy_with_logits keep every digit of their derivatives at low
    loss. Casts to float32 leave float64 as it is, since models of Hugging Face upcast what is lower; those of integers
    are to float64. `counted`: of each cross-entropy that was called, its reduction, what its mean divides by and how
    many values it has.
    """

    _current: Evaluation | None = None

    def __init__(self, dtype: torch.dtype = torch.float64) -> None:
        super().__init__()
        self._raises = dtype == torch.float64
        self.counted: list[tuple[str, float, int]] = []

    def __enter__(self) -> Evaluation:
        self._before, Evaluation._current = Evaluation._current, self
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *of: Any) -> None:
        Evaluation._current = self._before
        super().__exit__(*of)  # type: ignore[no-untyped-call]

    @classmethod
    def count(cls, reduction: str, total: Callable[[], float], size: int) -> None:
        """Note a cross-entropy of so many values, if one is being evaluated."""
        if cls._current is not None:
            cls._current.counted.append((reduction, total(), size))

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if (ours := _OURS.get(func)) is not None:
            return ours(*args, **kwargs)
        output = func(*args, **kwargs)
        if self._raises and func in _CASTS and output.dtype == torch.float32:
            is_whole = not (args[0].is_floating_point() or args[0].is_complex())
            if is_whole or args[0].dtype == torch.float64:
                output = args[0].to(output.device, torch.float64)
        return output


def log_softmax(z: Tensor, dim: int) -> Tensor:
    """log softmax with every entry, and its first and second derivatives, to full relative precision."""
    if z.shape[dim] < 2:
        return z - z
    top = z.argmax(dim, keepdim=True)
    apart = z - z.gather(dim, top)
    others = apart.scatter(dim, top, -torch.inf)
    # The entry of the likeliest class is 0 by itself: through the difference its derivative would be 1 - 1 + p.
    return apart.scatter(dim, top, 0.0) - others.exp().sum(dim, keepdim=True).log1p()


def _log_softmax(input: Tensor, dim: int | None = None, *_: Any, dtype: torch.dtype | None = None, **__: Any) -> Tensor:
    if not input.is_floating_point():
        input = input.to(dtype or torch.get_default_dtype())
    if dim is None:
        dim = 0 if input.ndim in (0, 1, 3) else 1
    return log_softmax(input, dim) if input.ndim else input - input


def _cross_entropy(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    ignore_index: int = IGNORED,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Tensor:
    classes = 0 if input.ndim == 1 else 1
    logs, weight = log_softmax(input, classes), None if weight is None else weight.to(input)
    if target.is_floating_point():
        if target.shape != input.shape:
            raise ArgumentError(
                f"cross_entropy of outputs {tuple(input.shape)} and probabilities {tuple(target.shape)}",
                "give probabilities of the outputs' shape, or class indices, which are integers",
            )
        q = target * (1 - label_smoothing) + label_smoothing / input.shape[classes] if label_smoothing else target
        if weight is not None:
            q = q * weight.view(-1, *[1] * (input.ndim - 1 - classes))
        values = -(q * logs).sum(classes)
        total = float(values.numel())
        Evaluation.count(reduction, lambda: total, values.numel())
    else:
        each = _weights_of(target, weight, ignore_index, input.shape[classes])
        values = F.nll_loss(logs, target, weight, None, ignore_index, None, "none")
        total = 1.0 if (is_wrapped := _is_wrapped(target)) else float(each.sum())
        if not is_wrapped:
            Evaluation.count(reduction, lambda: total, values.numel())
        if label_smoothing:
            spread = logs if weight is None else logs * weight.view(-1, *[1] * (input.ndim - 1 - classes))
            smooth = -spread.sum(classes).where(target != ignore_index, 0.0)
            values = (1 - label_smoothing) * values + label_smoothing / input.shape[classes] * smooth
        if is_wrapped and reduction == "mean":
            values = values / each.sum()
    if reduction == "none":
        return values
    return values.sum() / total if reduction == "mean" else values.sum()


def _nll_loss(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    ignore_index: int = IGNORED,
    reduction: str = "mean",
) -> Tensor:
    classes = input.shape[0 if input.ndim == 1 else 1]
    if not _is_wrapped(target):
        total = float(_weights_of(target, weight, ignore_index, classes).sum())
        Evaluation.count(reduction, lambda: total, target.numel())
    return F.nll_loss(input, target, weight, None, ignore_index, None, reduction)


def _is_wrapped(target: Tensor) -> bool:
    """Whether these are one sample's in torch.func.vmap, of which no number can be read."""
    return bool(torch._C._functorch.is_functorch_wrapped_tensor(target))


def _weights_of(target: Tensor, weight: Tensor | None, ignore_index: int, classes: int) -> Tensor:
    counts = target != ignore_index
    if not _is_wrapped(target) and bool(counts.any()):
        require_labels(target[counts], classes)
    if weight is not None and len(weight) != classes:
        raise ArgumentError(
            f"the loss has weights of {len(weight)} classes; the model has {classes}", "give each a weight"
        )
    return counts.double() if weight is None else weight.double()[target.where(counts, 0)].where(counts, 0.0)


def _binary_cross_entropy_with_logits(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    reduction: str = "mean",
    pos_weight: Tensor | None = None,
) -> Tensor:
    require_one_shape("binary_cross_entropy_with_logits", input, target)
    # y softplus(-z) + (1 - y) softplus(z), of which the part that does not vanish is linear.
    soft = (-input.abs()).exp().log1p()
    up, down = (input * (input > 0) + soft) * (1 - target), (soft - input * (input < 0)) * target
    values = up + (down if pos_weight is None else down * pos_weight)
    if weight is not None:
        values = values * weight
    return values if reduction == "none" else values.mean() if reduction == "mean" else values.sum()


def reduction_of(keywords: Mapping[str, Any], default: str) -> str:
    """The reduction that arguments of a torch loss ask for, by its former ones, too."""
    average, reduce = keywords.get("size_average"), keywords.get("reduce")
    if average is None and reduce is None:
        return str(keywords.get("reduction", default))
    return legacy_get_string(average, reduce, emit_warning=False)


def _called_as(function: Callable[..., Tensor], ours: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Ours with the arguments of torch's."""
    signature = inspect.signature(function)

    def call(*args: Any, **kwargs: Any) -> Tensor:
        arguments = signature.bind(*args, **kwargs).arguments
        reduction = reduction_of(arguments, "mean")
        former = ("size_average", "reduce", "reduction")
        return ours(**{n: x for n, x in arguments.items() if n not in former}, reduction=reduction)

    return call


def _of_one_shape(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def checked(input: Tensor, target: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        require_one_shape(function.__name__, input, target)
        return function(input, target, *args, **kwargs)

    return checked


def _softmax(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def cast(input: Tensor, *args: Any, dtype: torch.dtype | None = None, **kwargs: Any) -> Tensor:
        keep = dtype == torch.float32 and input.dtype == torch.float64
        return function(input, *args, **kwargs, **({} if keep or dtype is None else {"dtype": dtype}))

    return cast


def _table(functions: Iterable[Any], ours: Callable[[Any], Any]) -> dict[Any, Any]:
    return {function: ours(function) for function in functions}


_OURS: dict[Any, Callable[..., Any]] = {
    F.cross_entropy: _called_as(F.cross_entropy, _cross_entropy),
    F.nll_loss: _called_as(F.nll_loss, _nll_loss),
    F.binary_cross_entropy_with_logits: _called_as(
        F.binary_cross_entropy_with_logits, _binary_cross_entropy_with_logits
    ),
    **dict.fromkeys((F.log_softmax, torch.log_softmax, Tensor.log_softmax, torch.special.log_softmax), _log_softmax),
    **_table((F.mse_loss, F.l1_loss, F.smooth_l1_loss, F.huber_loss, F.poisson_nll_loss), _of_one_shape),
    **_table((F.softmax, torch.softmax, Tensor.softmax), _softmax),
}
_CASTS = {Tensor.float, Tensor.to, Tensor.type, Tensor.type_as}
