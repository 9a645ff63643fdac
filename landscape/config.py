"""Options as frozen dataclasses, which are flags, JSON and file attributes alike."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import json
import math
import re
import reprlib
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar, get_args, get_origin

from landscape.errors import ConfigError, suggest
from landscape.json_files import read_object

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Task = Literal["add", "sub", "mul", "div", "squares"]
Model = Literal["embedding", "onehot", "scalar"]
Activation = Literal["relu", "gelu", "tanh", "quadratic"]
Sampler = Literal["uniform", "random", "skewed", "zipf", "frequency_aware"]

MODULUS = 1 << 16
"""Largest p: all p^2 pairs are stored."""


@dataclasses.dataclass(frozen=True)
class TrainConfig:
    """Options of one grokking run."""

    task: Task = "add"
    """Operation mod p: a+b, a-b, a*b, a/b (b != 0) or a^2+b^2."""
    p: int = 97
    """Modulus."""
    tokens: Literal[2, 4] = 4
    """Input form: `a b` (2) or `a op b =` (4)."""
    model: Model = "embedding"
    """Input of the first layer: learned embeddings, one-hot tokens, or the tokens' numbers."""
    embed_dim: int = 128
    """Embedding dimension d."""
    hidden: int = 512
    """Width h of the hidden layer."""
    activation: Activation = "relu"
    """Activation of the hidden layer; quadratic is x^2."""
    bias: bool = True
    """Biases b1 and b2."""
    init_scale_E: float = 1.0
    """Factor on PyTorch's default initialisation of E, N(0, 1)."""
    init_scale_W: float = 1.0
    """Factor on PyTorch's default initialisation of W."""
    freeze: Literal["none", "E", "W"] = "none"
    """Matrix that stays at its initial value."""
    optimizer: Literal["sgd", "adam", "adamw"] = "adam"
    """sgd and adam couple the weight decay (L2); adamw decouples it."""
    lr: float = 0.01
    """Learning rate of every parameter except E."""
    lr_ratio: float | Literal["prop41", "curvature"] = 1.0
    """c = lr_E / lr_W: a number, Proposition 4.1 measured during training, or
    sqrt(lambda_max(H_WW)/lambda_max(H_EE))."""
    lr_ratio_every: int = 50
    """Steps between two updates of a measured lr_ratio."""
    momentum: float = 0.0
    """Momentum of sgd."""
    weight_decay: float = 0.001
    """Weight decay."""
    batch_size: int | Literal["full"] = 512
    """Pairs per step; full: the whole training set."""
    sampler: Sampler = "random"
    """How training pairs are chosen; frequency_aware also re-weights batches smaller than the training set."""
    skew: float = 0.35
    """Exponent of sampler skewed: token probability ~ rank^-skew (zipf: exponent 1)."""
    sampler_every: int = 100
    """Steps between two refreshes of the frequency_aware probabilities."""
    train_fraction: float = 0.3
    """Share of all pairs in the training set."""
    test_fraction: float | None = None
    """Share of all pairs in the test set. None: all pairs outside the training set."""
    steps: int = 5000
    """Largest number of optimiser steps."""
    stop_test_accuracy: float | None = None
    """Stop once the test accuracy reaches this value."""
    extra_steps: int = 0
    """Further steps after stop_test_accuracy is reached."""
    seed: int = 0
    """Seed of split, initialisation and batches; at most 2^64 - 1."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Device to train on."""
    dtype: Literal["float32", "float64"] = "float32"
    """Precision of training and of the stored checkpoints."""
    checkpoint_every: int = 0
    """Steps between checkpoints; 0: none by this rule."""
    checkpoint_log: int = 8
    """Log-spaced checkpoints per decade of steps; 0: none by this rule."""
    checkpoint_at: tuple[int, ...] = ()
    """Further steps to store; the first and last step always are."""
    metrics_every: int = 25
    """Steps between two rows of metrics."""

    def __post_init__(self) -> None:
        check_types(self)
        for name in ("lr", "weight_decay", "momentum", "skew", "init_scale_E", "init_scale_W"):
            check_value(name, getattr(self, name), lambda x: x >= 0, "a number >= 0")
        for name in ("embed_dim", "hidden", "metrics_every", "lr_ratio_every", "sampler_every"):
            check_value(name, getattr(self, name), lambda x: x >= 1, "an integer >= 1")
        for name in ("steps", "extra_steps", "checkpoint_every", "checkpoint_log"):
            check_value(name, getattr(self, name), lambda x: 0 <= x <= 1 << 53, "an integer from 0 to 2^53")
        check_value("seed", self.seed, lambda x: 0 <= x < 1 << 64, "an integer from 0 to 2^64 - 1")
        for name in ("train_fraction", "test_fraction", "stop_test_accuracy"):
            inside = (lambda x: 0 < x <= 1) if name == "stop_test_accuracy" else (lambda x: 0 < x < 1)
            if getattr(self, name) is not None:
                check_value(name, getattr(self, name), inside, "a fraction between 0 and 1")
        if self.train_fraction + (self.test_fraction or 0) > 1:
            raise ConfigError(
                f"train_fraction {self.train_fraction} + test_fraction {self.test_fraction} exceeds 1",
                "the two sets are disjoint: lower one of them",
            )
        if self.batch_size != "full":
            check_value("batch_size", self.batch_size, lambda x: x >= 1, "an integer >= 1, or full")
        if not isinstance(self.lr_ratio, str):
            check_value("lr_ratio", self.lr_ratio, lambda x: x > 0, "a number > 0, prop41 or curvature")
        if any(step < 0 or step > self.steps for step in self.checkpoint_at):
            raise ConfigError(
                f"checkpoint_at {list(self.checkpoint_at)} leaves the run's steps 0 to {self.steps}",
                "name steps inside the run, or raise --steps",
            )
        if self.p < 2:
            raise ConfigError(f"p is {self.p}; arithmetic mod p needs p >= 2", "pick a prime such as 59 or 97")
        if self.p > MODULUS:
            raise ConfigError(f"p is {self.p}; all pairs mod p are stored", f"--p takes an integer up to {MODULUS}")
        if self.task == "div" and not is_prime(self.p):
            around = (q for i in itertools.count(1) for q in (self.p - i, self.p + i))
            raise ConfigError(
                f"p is {self.p}, not a prime; division mod p needs one",
                f"the nearest prime is {next(filter(is_prime, around))}",
            )
        if self.model != "embedding" and (
            self.freeze == "E" or isinstance(self.lr_ratio, str) or self.sampler == "frequency_aware"
        ):
            raise ConfigError(
                f"model {self.model} has no E, but freeze, lr_ratio or sampler asks for one",
                "use --model embedding, or --freeze none, a number for --lr-ratio and another --sampler",
            )
        if self.freeze != "none" and isinstance(self.lr_ratio, str):
            raise ConfigError(
                f"lr_ratio {self.lr_ratio} balances E against W, but {self.freeze} is frozen",
                "use a number for --lr-ratio, or --freeze none",
            )

    @property
    def vocabulary(self) -> int:
        """V: the p operands, and with four tokens the operator and `=`."""
        return self.p + (2 if self.tokens == 4 else 0)


PRESETS: dict[str, dict[str, Any]] = {
    "quick": {
        "p": 59,
        "tokens": 2,
        "embed_dim": 16,
        "hidden": 64,
        "train_fraction": 0.4,
        "steps": 6000,
        "stop_test_accuracy": 0.95,
        "extra_steps": 1000,
        "checkpoint_every": 50,
    },
    "mid": {
        "p": 59,
        "embed_dim": 64,
        "hidden": 256,
        "train_fraction": 0.4,
        "test_fraction": 0.2,
        "steps": 6000,
        "stop_test_accuracy": 0.95,
        "extra_steps": 1000,
        "checkpoint_every": 100,
    },
    "paper": {
        "test_fraction": 0.2,
        "steps": 10000,
        "stop_test_accuracy": 0.95,
        "extra_steps": 1000,
        "checkpoint_every": 200,
        "metrics_every": 50,
    },
}


@dataclasses.dataclass(frozen=True)
class AnalysisConfig:
    """Options of an analysis at one point."""

    problem: str = ""
    """Your own model, data and loss: package.module:factory or path/to/file.py:factory, also from the current folder;
    factory() returns a landscape.ModuleProblem. Without it the run is one of `landscape train`."""
    blocks: tuple[str, ...] = ()
    """Blocks of the Hessian: E W V E,W W,V E,V all of a run of `landscape train` (by default E W E,W W,V all, as far as
    the model has them); with --problem its blocks (by default all of them). Also parameters and patterns such as
    '*.attn.*'; 'a,b' joins two blocks and measures their coupling."""
    k: int = 10
    """Eigenvalues at each end."""
    method: Literal["auto", "dense", "lanczos"] = "auto"
    """auto: dense up to dense_limit parameters, lanczos above."""
    dense_limit: int = 8000
    """Largest block that method auto treats as a dense matrix."""
    objective: Literal["data", "regularised"] = "data"
    """The data loss, or the data loss + weight_decay/2 |theta|^2 (runs with coupled decay)."""
    tol: float = 1e-6
    """Residual |Hv - lambda v| / |H| at which a Lanczos eigenvalue counts as converged."""
    tau: float | None = None
    """Relative tolerance of the saddle index; None: 1e-8 for dense blocks, 1e-3 for matrix-free ones."""
    max_products: int = 3000
    """Largest number of Hessian-vector products per block."""
    probes: int = 8
    """Gaussian probes of matrix-free blocks, for densities, traces and estimates of the saddle index."""
    probe_steps: int = 80
    """Hessian-vector products per probe."""
    bandwidth: float = 0.01
    """Smoothing of the spectral densities: standard deviation relative to the largest |H| of the step."""
    eigenvectors: bool = False
    """Store eigenvectors."""
    chunk_size: int = 8192
    """Samples processed at once in a product; bounds memory."""
    seed: int = 0
    """Seed of the random start vectors."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Device of the products, which are in float64."""

    def __post_init__(self) -> None:
        check_types(self)
        check_value("k", self.k, lambda x: 1 <= x <= 1 << 20, "an integer from 1 to 2^20")
        for name in ("dense_limit", "max_products", "chunk_size", "probe_steps"):
            check_value(name, getattr(self, name), lambda x: x >= 1, "an integer >= 1")
        check_value("probes", self.probes, lambda x: x >= 2, "an integer >= 2")
        check_value("bandwidth", self.bandwidth, lambda x: 0 < x < 1, "a number between 0 and 1")
        check_value("tol", self.tol, lambda x: 0 < x < 1, "a number between 0 and 1")
        # A search adds one to the seed.
        check_value("seed", self.seed, lambda x: -(1 << 63) <= x < (1 << 64) - 1, "an integer from -2^63 to 2^64 - 2")
        if self.tau is not None:
            check_value("tau", self.tau, lambda x: 0 < x < 1, "a number between 0 and 1")
        if len(set(self.blocks)) != len(self.blocks):
            raise ConfigError(f"blocks {list(self.blocks)}: one named twice", "name each block once")

    def is_dense(self, size: int) -> bool:
        """Whether a block of this many parameters is treated as a dense matrix."""
        return size <= self.dense_limit if self.method == "auto" else self.method == "dense"


@dataclasses.dataclass(frozen=True)
class HessianConfig(AnalysisConfig):
    """Options of an analysis of a run."""

    steps: str = "auto"
    """auto: log-spaced steps with the memorise and grok steps; all; or a list such as 0,100,2000."""
    num_steps: int = 12
    """Number of steps that auto chooses."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_value("num_steps", self.num_steps, lambda x: x >= 1, "an integer >= 1")
        if self.steps not in ("auto", "all"):
            if not _STEPS.fullmatch(self.steps):
                raise ConfigError(f"steps {self.steps!r} is no list of steps", "use auto, all, or e.g. 0,100,2000")
            if longest := [step for step in self.steps.split(",") if len(step.strip()) > _DIGITS]:
                raise ConfigError(
                    f"step {reprlib.repr(longest[0].strip())[1:-1]} is too large", "no run has more than 2^53 steps"
                )


@dataclasses.dataclass(frozen=True)
class SliceConfig:
    """Options of slices."""

    block: str = ""
    """Block whose eigenvectors are taken, as in `landscape hessian --blocks`; none: E,W, or all without it."""
    k: int = 2
    """Eigenvectors at each end."""
    radius: float | None = None
    """Largest t. None: where lambda t^2 / 2 of the largest |lambda| equals the objective."""
    points: int = 101
    """Points of a line."""
    plane_points: int = 41
    """Points of the plane along each direction."""

    def __post_init__(self) -> None:
        check_types(self)
        check_value("k", self.k, lambda x: 1 <= x <= 8, "an integer from 1 to 8")
        check_value("points", self.points, lambda x: 2 <= x <= 10_001, "an integer from 2 to 10001")
        check_value("plane_points", self.plane_points, lambda x: 2 <= x <= 401, "an integer from 2 to 401")
        if self.radius is not None:
            check_value("radius", self.radius, lambda x: x > 0, "a number > 0")


_STEPS = re.compile(r"\s*[0-9]+\s*(,\s*[0-9]+\s*)*")
_DIGITS = 30
"""Most digits of a step: more than any run needs."""
Config = TypeVar("Config", bound="DataclassInstance")


def preset(name: str) -> TrainConfig:
    """The preset `quick`, `mid` or `paper` (arXiv 2505.15624's set-up)."""
    if name not in PRESETS:
        raise ConfigError(f"unknown preset {name!r}", suggest(name, PRESETS))
    return TrainConfig(**PRESETS[name])


def load(path: Path, base: Config, example: str = '{"p": 59, "lr": 0.01}') -> Config:
    """`base` with the keys of a JSON file like `example`; unknown keys and wrong types are refused."""
    return replace(base, read_object(path, f"write {example} and the like"))


def replace(base: Config, data: dict[str, Any]) -> Config:
    """`base` with some fields replaced by values from JSON, checked by name and type."""
    fields = {f.name: f for f in dataclasses.fields(base)}
    for key in data:
        if key not in fields:
            raise ConfigError(f"unknown config key {key!r}", suggest(key, fields))
    values: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in data.items()}
    return dataclasses.replace(base, **values)


def to_json(config: DataclassInstance) -> str:
    """The config as one JSON object, keys in declaration order."""
    return json.dumps(dataclasses.asdict(config))


def is_prime(n: int) -> bool:
    """Whether n is a prime, by trial division."""
    return n >= 2 and all(n % q for q in range(2, math.isqrt(n) + 1))


def check_types(config: DataclassInstance) -> None:
    """Raise ConfigError for a field whose value does not have the annotated type."""
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if not _fits(value, field.type):
            raise ConfigError(f"{field.name} cannot be {reprlib.repr(value)}", _takes(str(field.type)))
        numbers = value if isinstance(value, tuple) else (value,)
        if any(isinstance(number, int) and abs(number) >> 64 for number in numbers):
            raise ConfigError(f"{field.name} cannot be {reprlib.repr(value)}", "it takes numbers below 2^64")


def check_value(name: str, value: Any, good: Any, wanted: str) -> None:
    """Raise ConfigError, with the values that the flag takes, for a number that is not finite or not good."""
    if (isinstance(value, float) and not math.isfinite(value)) or not good(value):
        flag = "--" + name.replace("_", "-")
        raise ConfigError(f"{name} is {value}", f"{flag} takes {wanted}")


def _fits(value: Any, annotation: Any) -> bool:
    """Whether a JSON value has the annotated type (annotations are strings here)."""
    kind = _kind(annotation) if isinstance(annotation, str) else annotation
    if kind is Any:
        return True
    if kind is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    if isinstance(kind, type) and kind is not tuple and not hasattr(kind, "__origin__"):
        return isinstance(value, kind) and (kind is bool or not isinstance(value, bool))
    origin = getattr(kind, "__origin__", None)
    if origin is Literal:
        return value in get_args(kind)
    if origin is tuple:
        return isinstance(value, list | tuple) and all(_fits(v, get_args(kind)[0]) for v in value)
    if origin is dict:
        return isinstance(value, dict) and all(_fits(v, get_args(kind)[1]) for v in value.values())
    return any(_fits(value, part) for part in get_args(kind))


def _takes(annotation: str) -> str:
    kind = _kind(annotation)
    return f"choose one of {', '.join(get_args(kind))}" if get_origin(kind) is Literal else f"it takes {annotation}"


@functools.cache
def _kind(annotation: str) -> Any:
    return eval(annotation, globals())
