"""A CPU without instructions for half precision runs hosts and detectors in float32, unless told otherwise."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from fakes import make_llama, make_tokenizer

from lettuceprevent import precision
from lettuceprevent.assets import HOST, HOST_HUB_ID
from lettuceprevent.cli import main
from lettuceprevent.detectors import host_defaults
from lettuceprevent.hosts import Host
from lettuceprevent.training import causal

HALVES = (torch.bfloat16, torch.float16)


@pytest.fixture
def products(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Sets how many times slower than float32 half precision is."""
    precision.slow_on_cpu.cache_clear()

    def slower(times: float) -> None:
        monkeypatch.setattr(precision, "_seconds", lambda dtype: times if dtype in HALVES else 1.0)

    yield slower
    precision.slow_on_cpu.cache_clear()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A host that was saved in bfloat16."""
    made = tmp_path_factory.mktemp("host")
    tokenizer = make_tokenizer()
    tokenizer.save_pretrained(made)
    make_llama(len(tokenizer)).to(torch.bfloat16).save_pretrained(made)
    return str(made)


def test_measured_on_this_machine() -> None:
    assert not precision.slow_on_cpu(torch.float32)
    assert precision.slow_on_cpu(torch.bfloat16) in (True, False)


@pytest.mark.parametrize(("times", "expected"), [(100.0, torch.float32), (1.5, torch.bfloat16)])
def test_auto_is_a_fast_precision(
    products: Any, folder: str, times: float, expected: torch.dtype, capsys: pytest.CaptureFixture[str]
) -> None:
    products(times)
    assert Host(folder, "cpu").model.dtype == expected
    assert ("slow on this CPU" in capsys.readouterr().err) is (expected == torch.float32)
    assert Host(folder, "cpu", "bfloat16").model.dtype == torch.bfloat16  # asked for


def test_detectors_follow_the_host_to_a_fast_precision(products: Any) -> None:
    def followed(dtype: torch.dtype, device: str) -> torch.dtype:
        model = SimpleNamespace(device=torch.device(device), dtype=dtype)
        found: torch.dtype = host_defaults(["lettuceprevent"], model)["detector_dtype"]
        return found

    products(100.0)
    assert followed(torch.bfloat16, "cpu") == followed(torch.float16, "cpu") == torch.float32
    assert followed(torch.bfloat16, "cuda") == torch.bfloat16
    products(0.5)
    precision.slow_on_cpu.cache_clear()
    assert followed(torch.bfloat16, "cpu") == torch.bfloat16
    assert followed(torch.float32, "cpu") == torch.float32


@pytest.mark.parametrize(
    ("times", "asked", "expected"),
    [(100.0, [], "float32"), (1.0, [], "bfloat16"), (100.0, ["bfloat16"], "bfloat16")],
)
def test_train_takes_a_fast_precision(
    products: Any,
    times: float,
    asked: list[str],
    expected: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    products(times)
    recipes = []

    def trained(backbone: str, examples: Any, out: str, recipe: Any, **options: Any) -> dict[str, Any]:
        recipes.append(recipe)
        raise ValueError("enough")

    monkeypatch.setattr(causal, "train_causal", trained)
    data = tmp_path / "data.jsonl"
    data.write_text('{"context": "c", "answer": "a b", "spans": [[0, 1]]}\n', encoding="utf-8")
    dtype = [f"--dtype={each}" for each in asked]
    arguments = ["train", "causal", "--backbone", "b", "--data", str(data), "--out", str(tmp_path), "--cpu"]
    assert main([*arguments, *dtype]) != 0
    assert [recipe.dtype for recipe in recipes] == [expected]


def test_the_hub_id_of_the_demo_model_means_the_folder_it_was_fetched_to(
    folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LETTUCEPREVENT_CACHE", str(tmp_path))
    shutil.copytree(folder, tmp_path / HOST)
    (tmp_path / HOST / "asset.json").write_text("{}")
    assert Host(HOST_HUB_ID, "cpu", "float32").model.config._name_or_path == str(tmp_path / HOST)
