"""Spectral densities of blocks on one grid, and the distances between them."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.matrices import Diagonal
from helpers.modules import operator_of
from matplotlib import pyplot

from landscape import block_densities, from_curvlinops, spectral_density, to_curvlinops
from landscape.curvature.density import jensen_shannon


def test_every_parameter_of_attention() -> None:
    """Each density has mass 1 and is that of its own block; distances are those of the densities, exact if dense."""
    H = operator_of("attention")
    result = block_densities(H)
    assert result.block == H.rows
    step = result.grid[1] - result.grid[0]
    assert result.density.sum(1) * step == pytest.approx(np.ones(len(H.rows)), rel=1e-6)
    assert not result.standard_error.any()
    assert not result.jensen_shannon_error.any()
    assert not result.jensen_shannon.diagonal().any()
    for i, j in ((0, 1), (2, 5)):
        assert result.jensen_shannon[i, j] == jensen_shannon(result.density[i], result.density[j]) > 0
    whole = block_densities(H, {"all": H.rows})
    assert np.abs(whole.density[0] - spectral_density(H).density).max() <= 1e-12 * whole.density.max()


def test_layers_and_named_blocks() -> None:
    """A layer has all parameters of its module; any lists of names may be blocks."""
    H = operator_of("attention")
    layers = block_densities(H, "layer")
    assert layers.block == ["embed", "before", "after", "qkv", "out"]
    chosen = block_densities(H, {"ends": ["embed.weight", "out.weight"], "qkv": ["qkv.weight", "qkv.bias"]})
    assert chosen.block == ["ends", "qkv"]
    assert chosen.to_xarray()["jensen_shannon"].dims == ("block", "other_block")
    assert list(chosen.to_dataframe()["block"].unique()) == ["ends", "qkv"]


def test_quadratures_agree_with_known_spectra() -> None:
    """By products alone each distance is that of the dense spectra within its stated error; also through curvlinops."""
    H = operator_of("attention")
    exact = block_densities(H, "layer", bandwidth=0.05)
    estimate = block_densities(H, "layer", bandwidth=0.05, method="lanczos", probes=20)
    away = np.abs(estimate.jensen_shannon - exact.jensen_shannon)
    off = ~np.eye(len(away), dtype=bool)
    assert (away <= estimate.jensen_shannon_error + 0.02)[off].mean() >= 0.9
    assert (estimate.jensen_shannon_error[off] > 0).all()
    theirs = from_curvlinops(to_curvlinops(H), H.params)
    assert np.abs(block_densities(theirs, "layer", 0.05).density - exact.density).max() < 1e-9 * exact.density.max()  # type: ignore[arg-type]


def test_figure_shows_densities_and_distances() -> None:
    """Two parts with a curve and a row for each block; more than eight blocks have no numbers in the map."""
    H = operator_of("attention")
    figure = block_densities(H, "layer").plot().figure
    left, right, _ = figure.axes
    assert [text.get_text() for text in left.get_legend().get_texts()] == ["embed", "before", "after", "qkv", "out"]
    assert [text.get_text() for text in right.get_yticklabels()] == ["embed", "before", "after", "qkv", "out"]
    assert len(right.texts) == 25
    many = block_densities(H).plot().figure
    assert len(many.axes[1].texts) == 0
    single = block_densities(H, {"$one$": ["embed.weight"]}).plot().figure
    assert single.axes[1].get_yticklabels()[0].get_text() == r"\$one\$"
    pyplot.close("all")


def test_words_of_errors() -> None:
    """Blocks that cannot be are named."""
    H = operator_of("mlp")
    with pytest.raises(ValueError, match="blocks is 'module'"):
        block_densities(H, "module")  # type: ignore[arg-type]
    for empty in ({}, [H.rows]):
        with pytest.raises(ValueError, match="blocks are"):
            block_densities(H, empty)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="no parameter 'w'"):
        block_densities(H, {"one": ["w"]})
    with pytest.raises(ValueError, match="a block is a list of names, not '0.weight'"):
        block_densities(H, {"one": "0.weight"})
    with pytest.raises(ValueError, match="seed is None"):
        block_densities(H, seed=None)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="has no named rows"):
        block_densities(Diagonal(np.ones(5)))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="take a diagonal block"):
        block_densities(H.block(H.rows[:1], H.rows[1:]))
