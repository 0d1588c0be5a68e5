"""Trainings made one: the mean of the weights, a threshold of the shared validation side, and what is refused."""

from __future__ import annotations

import importlib.util
import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from causal import make_checkpoint
from safetensors.torch import load_file
from test_train_causal import EXAMPLES, TINY, quiet

from lettuceprevent.checkpoint import load_checkpoint
from lettuceprevent.training.causal import train_causal
from lettuceprevent.training.merge import merge

if importlib.util.find_spec("peft") is None:
    pytest.skip("peft is not installed (extra `train`)", allow_module_level=True)

RECIPE = replace(TINY, lora_rank=4, lora_layers=(2, 3), keep_layers=4, epochs=1.0)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Three trainings of one base, which differ in layers, rank and length, and others that fit none."""
    folder = tmp_path_factory.mktemp("trained")
    make_checkpoint(folder / "base")
    recipes = {
        "a": RECIPE,
        "b": replace(RECIPE, lora_rank=2, lora_layers=(3, 4), epochs=2.0),
        "seed": replace(RECIPE, seed=1),
        "short": replace(RECIPE, keep_layers=3),
        "whole": replace(RECIPE, lora_rank=0, lora_layers=None),
    }
    for name, recipe in recipes.items():
        train_causal(str(folder / "base"), EXAMPLES, folder / name, recipe, cpu=True, say=quiet)
    return {name: folder / name for name in recipes}


def added(folder: Path) -> dict[str, torch.Tensor]:
    """What a training adds to each matrix of the base, and its head."""
    found = {name: each.double() for name, each in load_file(folder / "adapter.safetensors").items()}
    names = [name.removesuffix(".lora_A") for name in found if name.endswith(".lora_A")]
    head = {name: each for name, each in found.items() if name.startswith("classifier.")}
    return head | {name: found[f"{name}.lora_B"] @ found[f"{name}.lora_A"] for name in names}


def test_the_merged_weights_are_the_mean(trained: dict[str, Path], tmp_path: Path) -> None:
    card = merge([trained["a"], trained["b"]], EXAMPLES, tmp_path, cpu=True, say=quiet)
    one, two, mean = (added(folder) for folder in (trained["a"], trained["b"], tmp_path))
    assert mean.keys() == one.keys() | two.keys() and len(one.keys() ^ two.keys()) > 8
    for name, value in mean.items():
        expected = (one.get(name, 0 * value) + two.get(name, 0 * value)) / 2
        assert value.abs().max() > 0 and torch.allclose(value, expected, atol=1e-6), name
    assert load_checkpoint(tmp_path).threshold == card["validation"]["threshold"]
    adapter = json.loads((tmp_path / "adapter.json").read_text("utf-8"))
    assert (adapter["rank"], adapter["lora_layers"]) == (6, [2, 4])
    assert card == json.loads((tmp_path / "training.json").read_text("utf-8"))
    assert card["recipe"]["epochs"] == [1.0, 2.0] and card["recipe"]["seed"] == 0
    assert [each["recipe"]["lora_rank"] for each in card["merged"]] == [4, 2]
    assert not list(tmp_path.glob("prompts-*"))
    assert "The mean of 2 trainings" in (tmp_path / "README.md").read_text("utf-8")


def test_merged_with_itself_a_training_stays_as_it_is(trained: dict[str, Path], tmp_path: Path) -> None:
    card = merge([trained["a"]] * 2, EXAMPLES, tmp_path, cpu=True, say=quiet)
    before = json.loads((trained["a"] / "training.json").read_text("utf-8"))
    for name in ("average_precision", "auroc", "f1", "threshold"):
        assert card["validation"][name] == pytest.approx(before["validation"][name], abs=1e-6)
    assert card["data"] == before["data"]


@pytest.mark.parametrize(
    ("names", "error", "message"),
    [
        (["a"], ValueError, "expected two or more trainings to merge, got 1"),
        (["a", "seed"], ValueError, "seed: expected 0, as in .*a, got 1"),
        (["a", "short"], ValueError, "layers: expected 4, as in .*a, got 3"),
        (["a", "whole"], FileNotFoundError, "expected a finished LoRA training, got no adapter.json"),
        (["a", "base"], FileNotFoundError, "expected a finished LoRA training, got no training.json"),
    ],
)
def test_what_cannot_be_one_is_refused(
    trained: dict[str, Path], names: list[str], error: type[Exception], message: str, tmp_path: Path
) -> None:
    folders = [trained["a"].parent / name for name in names]
    with pytest.raises(error, match=message):
        merge(folders, EXAMPLES, tmp_path / "out", cpu=True, say=quiet)
    assert not (tmp_path / "out").exists()


def test_other_data_are_refused(trained: dict[str, Path], tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="expected the data it was trained on, with hash"):
        merge([trained["a"], trained["b"]], EXAMPLES[1:], tmp_path / "out", cpu=True, say=quiet)
    assert not (tmp_path / "out").exists()
