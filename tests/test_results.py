from __future__ import annotations

import gzip
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


def test_the_results_page_is_up_to_date():
    if not (ROOT / "results").is_dir():
        pytest.skip("no results in this checkout")
    done = subprocess.run(
        [sys.executable, "scripts/make_results.py", "--check"], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def test_results_name_no_place_on_a_machine():
    folder = ROOT / "results"
    if not folder.is_dir():
        pytest.skip("no results in this checkout")
    texts = {}
    for path in folder.glob("*.*"):
        if path.suffix != ".png":
            raw = path.read_bytes()
            texts[path.name] = (gzip.decompress(raw) if path.suffix == ".gz" else raw).decode("utf-8")
    named = {
        name for name, text in texts.items() if re.search(r"(?<![\w.…])/(?:work|root|home|tmp|Users)/", text)
    }
    assert not named
