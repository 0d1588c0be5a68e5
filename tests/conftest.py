"""Shared fixtures: real models and tokenizers from the cache; a test skips where they were not fetched.

Use `real_tokenizer(name)` or the fixtures `smollm2` and `smollm2_tokenizer`; `--slow` adds the long tests.
"""

from __future__ import annotations

import functools
import os
from pathlib import Path
from typing import Any

import pytest

# Before torch is imported: tests run beside other work, and nothing is to be fetched from a hub.
os.environ.setdefault("OMP_NUM_THREADS", "2")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

from hypothesis import HealthCheck, settings

from lettuceprevent.assets import HOST, TOKENIZERS, asset_path

settings.register_profile(
    "default", deadline=None, max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
settings.register_profile(
    "thorough", deadline=None, max_examples=1000, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))

SHARED_DATA = Path(
    os.environ.get("LETTUCEPREVENT_DATA", Path(__file__).resolve().parents[2] / "shared" / "data")
)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--slow", action="store_true", help="also run tests marked slow")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--slow"):
        return
    for item in items:
        if "slow" in item.keywords:
            item.add_marker(pytest.mark.skip(reason="slow; run with --slow"))


def need_asset(name: str) -> Path:
    """The folder of an asset; skips the test where it has not been fetched."""
    folder = asset_path(name)
    if folder is None:
        pytest.skip(f"{name} has not been fetched (python scripts/get_assets.py {name})")
    return folder


@functools.cache
def _tokenizer(folder: str) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(folder)


def real_tokenizer(name: str) -> Any:
    """A tokenizer from the cache, loaded once a session; skips the test where it has not been fetched."""
    return _tokenizer(str(need_asset(name)))


@pytest.fixture(params=TOKENIZERS)
def any_real_tokenizer(request: pytest.FixtureRequest) -> Any:
    """Each real tokenizer in turn."""
    return real_tokenizer(request.param)


@pytest.fixture(scope="session")
def smollm2_tokenizer() -> Any:
    return real_tokenizer(HOST)


@pytest.fixture(scope="session")
def smollm2() -> Any:
    """SmolLM2-135M-Instruct in float32, evaluation mode. Do not change it."""
    import torch
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(need_asset(HOST), dtype=torch.float32).eval()


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder with evaluation data ($LETTUCEPREVENT_DATA or ../shared/data); skips where it is absent."""
    if not SHARED_DATA.is_dir():
        pytest.skip(f"no evaluation data in {SHARED_DATA} (set LETTUCEPREVENT_DATA)")
    return SHARED_DATA
