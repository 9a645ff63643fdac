"""Options as frozen dataclasses, which are flags, JSON and file attributes alike."""

from __future__ import annotations

import dataclasses
import json
import re
import reprlib
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from landscape.choices.activations import ACTIVATIONS
from landscape.choices.optimizers import OPTIMIZERS
from landscape.choices.samplers import SAMPLERS
from landscape.choices.tasks import MODULUS, TASKS
from landscape.combinations import require_combination
from landscape.errors import ConfigError, suggest
from landscape.json_files import read_object
from landscape.options import check, field, flag_of
from landscape.presets import PRESETS

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    Task = str
    Sampler = str
    Activation = str
    Optimizer = str
else:
    # For the parser and its help; a config itself asks the registry, where more may be registered later.
    Task, Sampler, Activation, Optimizer = (Literal[tuple(r)] for r in (TASKS, SAMPLERS, ACTIVATIONS, OPTIMIZERS))

Config = TypeVar("Config", bound="DataclassInstance")
Spectra = Literal["auto", "full", "ends"]
FULL_LIMIT = 1000
"""Largest block of which all eigenvalues are computed unless asked otherwise."""
SMALL = 128
"""Largest block that is assembled by products unless asked otherwise."""
ROUGH, CLOSE, EXACT = 1e-3, 1e-4, 1e-6
"""Residuals relative to |H|: of the outermost eigenvalues by default, in a dense block, of all with `certify`."""
MOST = 1 << 53
"""Largest number of steps or products: floats count no further."""


@dataclasses.dataclass(frozen=True)
class TrainConfig:
    """Options of a training run."""

    task: Task = field("add", "Operation mod p.", choices=TASKS)
    p: int = field(97, "Modulus; task text has none.", at_most=MODULUS)
    tokens: Literal[2, 3, 4] = field(4, "Input form: `a b` (2), `a b =` (3) or `a op b =` (4).")
    text: str = field("", "Text of task text: a file in UTF-8.")
    vocabulary: int = field(
        1000,
        "Words that task text tells apart: the most frequent ones, and one for all others.",
        at_least=2,
        at_most=MODULUS,
    )
    context: int = field(3, "Words from which task text predicts the next one.", at_least=1, at_most=64)
    samples: int = field(20_000, "Places of the text to train and test on.", at_least=2, at_most=MOST)
    model: Literal["embedding", "onehot", "tables", "scalar", "transformer"] = field(
        "embedding",
        "An MLP on learned embeddings, one-hot tokens or the tokens' numbers; tables: the MLP on one-hot tokens that "
        "starts as the one on embeddings; or a Transformer.",
    )
    embed_dim: int = field(128, "Embedding dimension d.", at_least=1)
    hidden: int = field(512, "Width h of the hidden layer.", at_least=1)
    layers: int = field(1, "Layers of a Transformer.", at_least=1)
    heads: int = field(4, "Heads of its attention, each of embed_dim / heads dimensions.", at_least=1)
    norm: Literal["none", "pre", "post"] = field(
        "none", "Its LayerNorm: nowhere, before each sublayer and the unembedding, or after each residual sum."
    )
    positions: Literal["learned", "sinusoidal"] = field("learned", "Its embedding of the positions.")
    tied: bool = field(False, "Unembed with the operands' part of E instead of a matrix U.")
    activation: Activation = field("relu", "Activation of the hidden layer.", choices=ACTIVATIONS)
    bias: bool = field(True, "Biases of the linear layers: b1 and b2, or those of a Transformer's MLP.")
    init_scale_E: float = field(
        1.0, "Factor on the initialisation of E: N(0, 1), or N(0, 1/embed_dim) in a Transformer.", at_least=0
    )
    init_scale_W: float = field(1.0, "Factor on PyTorch's default initialisation of W.", at_least=0)
    start: Literal["own", "folded"] = field(
        "own",
        "Initial values; folded (--tokens 2): those of the same run with --tokens 4, with what `op` and `=` contribute "
        "added to b1.",
    )
    freeze: Literal["none", "E", "W"] = field("none", "Matrix that stays at its value.")
    freeze_from: int = field(0, "Step from which that matrix is frozen.", at_least=0, at_most=MOST)
    kick: Literal["none", "E,W", "W,V", "random", "held"] = field(
        "none",
        "Direction in which the parameters are moved now and then, downhill: the lowest eigenvector of the Hessian of "
        "the training loss in these parameters, or a random direction of E,W; held: no step goes along the ten lowest "
        "eigenvectors of E,W, found anew as often.",
    )
    kick_from: int = field(0, "Step of the first kick.", at_least=0, at_most=MOST)
    kick_every: int = field(50, "Steps between two kicks.", at_least=1)
    kick_size: float = field(0.01, "Norm of a kick, as a share of that of E and W together.", above=0)
    optimizer: Optimizer = field("adam", "How gradients move the parameters.", choices=OPTIMIZERS)
    lr: float = field(0.01, "Learning rate of every parameter except E.", at_least=0)
    lr_ratio: float | Literal["prop41", "curvature", "auto"] = field(
        1.0,
        "c = lr_E / lr_W: a number, or measured during training; prop41: Proposition 4.1 (W of a Transformer: all that "
        "reads E in its first layer); curvature: sqrt(lambda_max(H_WW) / lambda_max(H_EE)); auto: doubled until E "
        "is half-way to its edge of stability.",
        above=0,
    )
    lr_E: float | None = field(None, "Learning rate of E, in place of lr_ratio.", at_least=0)
    lr_ratio_every: int = field(50, "Steps between two updates of a measured lr_ratio.", at_least=1)
    momentum: float = field(0.0, "Momentum of sgd.", at_least=0)
    betas: tuple[float, ...] = field((0.9, 0.999), "Decay rates of the two moments of adam and adamw.")
    warmup: int = field(0, "Steps over which the learning rates rise linearly.", at_least=0, at_most=MOST)
    weight_decay: float = field(0.001, "Weight decay.", at_least=0)
    weight_decay_V: float | None = field(None, "Weight decay of V, in place of weight_decay.", at_least=0)
    penalty: Literal["l2", "nuclear"] = field(
        "l2", "What weight decay acts on; nuclear: of W in model tables the sum of its tables' singular values."
    )
    batch_size: int | Literal["full"] = field(512, "Pairs per step; full: the whole training set.", at_least=1)
    sampler: Sampler = field("random", "How training pairs are chosen.", choices=SAMPLERS)
    skew: float = field(
        0.35, "Exponent of sampler skewed: token probability ~ rank^-skew (zipf: exponent 1).", at_least=0
    )
    sampler_every: int = field(100, "Steps between two refreshes of the frequency_aware probabilities.", at_least=1)
    train_fraction: float = field(0.3, "Share of all pairs in the training set.", above=0, below=1)
    test_fraction: float | None = field(
        None, "Share of all pairs in the test set. By default all pairs outside the training set.", above=0, below=1
    )
    steps: int = field(5000, "Largest number of optimiser steps.", at_least=0, at_most=MOST)
    stop_test_accuracy: float | None = field(
        None, "Stop once the test accuracy reaches this value.", above=0, at_most=1
    )
    extra_steps: int = field(0, "Further steps after stop_test_accuracy is reached.", at_least=0, at_most=MOST)
    seed: int = field(
        0, "Seed of split, initialisation and batches; at most 2^64 - 1.", at_least=0, at_most=(1 << 64) - 1
    )
    device: Literal["auto", "cpu", "cuda"] = field("auto", "Device to train on.")
    dtype: Literal["float32", "float64"] = field("float32", "Precision of training and of the stored checkpoints.")
    checkpoint_every: int = field(0, "Steps between checkpoints; 0: none by this rule.", at_least=0, at_most=MOST)
    checkpoint_log: int = field(
        8, "Log-spaced checkpoints per decade of steps; 0: none by this rule.", at_least=0, at_most=MOST
    )
    checkpoint_at: tuple[int, ...] = field((), "Further steps to store; the first and last are always stored.")
    metrics_every: int = field(25, "Steps between two rows of metrics.", at_least=1)

    def __post_init__(self) -> None:
        check(self)
        if self.train_fraction + (self.test_fraction or 0) > 1:
            raise ConfigError(
                f"train_fraction {self.train_fraction} + test_fraction {self.test_fraction} exceeds 1",
                "the two sets are disjoint: lower one of them",
            )
        if len(self.betas) != 2 or not all(0 <= beta < 1 for beta in self.betas):
            raise ConfigError(f"betas is {list(self.betas)}", "--betas takes two numbers from 0 to below 1")
        if any(step < 0 or step > self.steps for step in self.checkpoint_at):
            raise ConfigError(
                f"checkpoint_at {reprlib.repr(list(self.checkpoint_at))} leaves the run's steps 0 to {self.steps}",
                "name steps inside the run, or raise --steps",
            )
        require_combination(self)

    def is_frozen(self, parameter: str, step: int) -> bool:
        """Whether a parameter stays at its value in the step after `step`."""
        return parameter == self.freeze != "none" and step >= self.freeze_from

    def risen(self, step: int) -> float:
        """Share of the learning rates, which rise to 1 in the warm-up, that the step after `step` takes."""
        return min(1.0, (step + 1) / self.warmup) if self.warmup else 1.0

    @property
    def reads_text(self) -> bool:
        """Whether the samples are words of a text, not pairs of numbers."""
        return TASKS[self.task].answer is None

    @property
    def classes(self) -> int:
        """The answers to choose from, which are the operands too: p numbers, or the words of a text."""
        return self.vocabulary if self.reads_text else self.p

    @property
    def slots(self) -> int:
        """Tokens of a sample."""
        return self.context if self.reads_text else self.tokens

    @property
    def num_tokens(self) -> int:
        """V: the p operands, with three tokens `=`, and with four the operator too; or the words of a text."""
        return self.vocabulary if self.reads_text else self.p + self.tokens - 2


@dataclasses.dataclass(frozen=True)
class AnalysisConfig:
    """Options of an analysis at one point."""

    problem: str = field(
        "",
        "Your own model, data and loss: package.module:factory or path/to/file.py:factory, also from the current "
        "folder; factory() returns a landscape.ModuleProblem. Without it the run is one of `landscape train`.",
    )
    blocks: tuple[str, ...] = field(
        (),
        "Blocks of the Hessian. Of an MLP: E W V E,W W,V E,V all (by default E W E,W W,V, as far as the model has "
        "them); of a Transformer: E P Q K V O mlp_in mlp_out U E,Q,K Q,K V,O mlp_in,mlp_out E,U E,mlp_in all (by "
        "default all of these but P and all); with --problem those that it declares, else all. Also parameters and "
        "patterns such as '*.attn.*', and rows: 'E[operands]', 'E[constants]' (tokens that every sample holds), "
        "'W[0:9]'; 'a,b' joins two blocks and measures their coupling.",
    )
    k: int = field(4, "Eigenvalues at each end.", at_least=1, at_most=1 << 20)
    only: Literal["sharpness"] | None = field(
        None, "sharpness: lambda_max of each block alone, and that of the optimiser's preconditioned Hessian."
    )
    certify: bool = field(
        False,
        "Dense factorisations of every block of up to dense_limit parameters: certified saddle indices, those without "
        "gauge directions, excess indices, all coupling ratios and those to Gauss-Newton blocks, and residuals of "
        "1e-6 of all k eigenvalues. Without it a block is dense if it has a closed form, as in an MLP, or up to "
        f"{SMALL} parameters; any other has a bracket and an estimate of its index.",
    )
    curve: bool = field(
        False, "Index curves: the number of eigenvalues below -tau for ten decades of tau, from |H| down to 1e-10 |H|."
    )
    density: bool = field(False, "Smoothed spectral densities, their distances, and traces of matrix-free blocks.")
    method: Literal["auto", "dense", "lanczos"] = field(
        "auto", "auto: dense as --certify says; dense: every block, by a product for each parameter; lanczos: none."
    )
    dense_limit: int = field(8000, "Largest block that method auto treats as a dense matrix.", at_least=1)
    factor_limit: int = field(
        20_000,
        "Largest order of a Cholesky factor (4 bytes times its square) by which --certify and --curve count E,W and "
        "W,V of an MLP with ReLU beyond dense_limit: at tau itself, or else between two tolerances. 0: bounds from "
        "theory and searches alone.",
        at_least=0,
    )
    spectra: Spectra = field(
        "auto",
        "Eigenvalues of a dense block: all of them (full), or k at each end (ends); auto: all up to "
        f"{FULL_LIMIT} parameters.",
    )
    objective: Literal["data", "regularised"] = field(
        "data", "The data loss, or the data loss + weight_decay/2 |theta|^2 (runs with coupled decay)."
    )
    rtol: float | None = field(
        None,
        "Residual |Hv - lambda v| / |H| at which an eigenvalue counts as converged; by default 1e-3 for the outermost "
        "at each end, 1e-4 in a dense block, 1e-6 for all k with --certify.",
        above=0,
        below=1,
    )
    rel_tau: float | None = field(
        None,
        "Relative tolerance of the saddle index; by default 1e-8 for dense blocks, 1e-3 for matrix-free ones, or "
        "twice what their rounding allows.",
        above=0,
        below=1,
    )
    max_hvps: int = field(
        3000,
        "Largest number of Hessian-vector products per block, and a third of it per pair of blocks.",
        at_least=1,
    )
    probes: int = field(
        8,
        "Gaussian probes of matrix-free blocks, for densities, traces, index curves and, with --certify, estimates of "
        "the saddle index.",
        at_least=2,
    )
    probe_steps: int = field(80, "Hessian-vector products per probe.", at_least=1)
    bandwidth: float = field(
        0.01,
        "Smoothing of the spectral densities: standard deviation relative to the largest |H| of the step, at least "
        "0.004.",
        above=0,
        below=1,
    )
    vectors: bool = field(False, "Store eigenvectors.")
    chunk_size: int = field(
        8192, "Samples processed at once in a product; bounds memory. With --problem the problem sets it.", at_least=1
    )
    seed: int = field(0, "Seed of the random start vectors.", at_least=-(1 << 63), at_most=(1 << 64) - 2)
    device: Literal["auto", "cpu", "cuda"] = field("auto", "Device of the products.")
    dtype: Literal["float64", "float32"] = field(
        "float64", "Precision of the products; float32 for a model of --problem that runs only in it."
    )

    def __post_init__(self) -> None:
        check(self)
        if self.dtype != "float64" and not self.problem:
            raise ConfigError("dtype is float32 without a problem", "leave --dtype out: runs of `train` take float64")
        if len(set(self.blocks)) != len(self.blocks):
            raise ConfigError(f"blocks {list(self.blocks)}: one named twice", "name each block once")
        if self.only and (more := [name for name in ("certify", "curve", "density", "vectors") if getattr(self, name)]):
            raise ConfigError(f"only is sharpness, but {more[0]} asks for more", f"leave out --only or --{more[0]}")
        if (self.method, self.spectra) == ("lanczos", "full"):
            raise ConfigError(
                "spectra is full, but method lanczos forms no matrix", "use --method dense, or leave out --spectra"
            )

    def residual(self, is_dense: bool) -> float:
        """Residual relative to |H| at which an eigenvalue counts as converged, of a dense block or another."""
        return self.rtol or (EXACT if self.certify else CLOSE if is_dense else ROUGH)

    def is_dense(self, size: int, has_closed_form: bool) -> bool:
        """Whether a block of this many parameters is treated as a dense matrix."""
        if self.method != "auto":
            return self.method == "dense"
        most = self.dense_limit if self.certify or has_closed_form else SMALL
        return self.only is None and size <= min(most, self.dense_limit)

    def is_full(self, size: int) -> bool:
        """Whether every eigenvalue of a dense block of this many parameters is computed."""
        return size <= FULL_LIMIT if self.spectra == "auto" else self.spectra == "full"


@dataclasses.dataclass(frozen=True)
class HessianConfig(AnalysisConfig):
    """Options of an analysis of a run."""

    steps: str = field(
        "auto",
        "auto: log-spaced steps with the memorise and grok steps; plateau: the one in the middle between those two on "
        "a log scale; all; or a list such as 0,100,2000.",
    )
    num_steps: int = field(12, "Largest number of steps that auto chooses.", at_least=1)
    settle: bool = field(
        False,
        "Measure each checkpoint where `landscape settle` brings it with its defaults, with less of the optimiser's "
        "noise. What is descended is the data loss with the weight decay of the run, whatever --objective measures; "
        "without it where that is not part of a smooth loss (AdamW, nuclear norms) or --problem has none.",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.steps not in ("auto", "all", "plateau"):
            if not _STEPS.fullmatch(self.steps):
                raise ConfigError(
                    f"steps {self.steps!r} is no list of steps", "use auto, plateau, all, or e.g. 0,100,2000"
                )
            if longest := [step for step in self.steps.split(",") if len(step.strip()) > _DIGITS]:
                raise ConfigError(
                    f"step {reprlib.repr(longest[0].strip())[1:-1]} is too large", "no run has more than 2^53 steps"
                )


@dataclasses.dataclass(frozen=True)
class SliceConfig:
    """Options of slices."""

    plane: Literal["eigen", "random", "pca"] = field(
        "eigen",
        "eigen: lines along eigenvectors, and the plane of the lowest and the highest; random: a plane of random "
        "directions with the norms of the parameters' filters; pca: the plane of the training path up to the step.",
    )
    block: str = field(
        "",
        "Block that moves, as in `landscape hessian --blocks`; none: E,W or all without it for eigen, all for other "
        "planes.",
    )
    k: int = field(2, "Eigenvectors at each end, of eigen.", at_least=1, at_most=8)
    radius: float | None = field(
        None,
        "Largest step. By default where lambda t^2 / 2 of the largest |lambda| equals the |objective|, 1 where one is "
        "0, of eigen; 1 of random; of pca the range of the path.",
        above=0,
    )
    points: int = field(101, "Points of a line, of eigen.", at_least=2, at_most=10_001)
    plane_points: int = field(41, "Points of the plane along each direction.", at_least=2, at_most=401)
    normalisation: Literal["filter", "layer", "none"] = field(
        "filter",
        "What gives random directions the norms of the parameters: each filter (row), each parameter, or nothing.",
    )
    biases: bool = field(False, "Let random directions move biases and scales of norms, too.")
    seed: int = field(0, "Seed of the random directions.", at_least=-(1 << 63), at_most=(1 << 64) - 2)

    def __post_init__(self) -> None:
        check(self)
        owners = {"k": "eigen", "points": "eigen", "normalisation": "random", "biases": "random", "seed": "random"}
        for f in dataclasses.fields(self):
            owner = owners.get(f.name, self.plane)
            if owner != self.plane and getattr(self, f.name) != f.default:
                raise ConfigError(
                    f"{f.name} is of plane {owner}, but plane is {self.plane}",
                    f"leave out {flag_of(f.name)}, or take --plane {owner}",
                )


_STEPS = re.compile(r"\s*[0-9]+\s*(,\s*[0-9]+\s*)*")
_DIGITS = 30
"""Most digits of a step: more than any run needs."""


def preset(name: str) -> TrainConfig:
    """The options of a preset.

    Args:
        name: `demo`, `quick`, `mid` or `paper` (arXiv 2505.15624), or a Transformer: `transformer`, `nanda` or `power`.

    Returns:
        Its options.

    Raises:
        ConfigError: for another name.
    """
    if not isinstance(name, str) or name not in PRESETS:
        raise ConfigError(f"unknown preset {name!r}", suggest(name, PRESETS))
    return TrainConfig(**PRESETS[name])


def load(path: Path, base: Config, example: str = '{"p": 59, "lr": 0.01}') -> Config:
    """`base` with the keys of a JSON file like `example`; unknown keys and wrong types are refused."""
    return replace(base, read_object(path, f"write {example} and the like"))


def replace(base: Config, data: dict[str, Any]) -> Config:
    """`base` with some fields replaced by values from JSON, checked by name and type."""
    fields = [f.name for f in dataclasses.fields(base)]
    for key in data:
        if key not in fields:
            raise ConfigError(f"unknown config key {key!r}", suggest(key, fields))
    values: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in data.items()}
    return dataclasses.replace(base, **values)


def to_json(config: DataclassInstance) -> str:
    """The config as one JSON object, keys in declaration order."""
    return json.dumps(dataclasses.asdict(config))
