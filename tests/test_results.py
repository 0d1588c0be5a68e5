from __future__ import annotations

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
