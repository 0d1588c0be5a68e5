"""The package's public names, and the script that runs the README."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

import lettuceprevent

ROOT = Path(__file__).resolve().parents[1]

README = """
```python
a = 1
print("twelve", a)  # -> twelve ...
```

<!-- needs-hub: seven billion weights -->
```python
raise SystemExit("never run")
```
```bash
exit 1
```
```python
print(a + 1)  # -> {expected}
```
"""


@pytest.mark.parametrize("name", lettuceprevent._EXPORTS)
def test_every_public_name_resolves(name: str) -> None:
    if importlib.util.find_spec(f"lettuceprevent.{lettuceprevent._EXPORTS[name]}") is None:
        pytest.skip(f"lettuceprevent.{lettuceprevent._EXPORTS[name]} is not there yet")
    assert getattr(lettuceprevent, name).__name__ == name
    assert name in dir(lettuceprevent)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'salad'"):
        lettuceprevent.salad  # noqa: B018
    assert lettuceprevent.__version__.count(".") == 2


@pytest.mark.parametrize(("expected", "status"), [("2", 0), ("3", 1)])
def test_readme_snippets_are_run_in_order_and_compared(tmp_path: Path, expected: str, status: int) -> None:
    file = tmp_path / "README.md"
    file.write_text(README.replace("{expected}", expected))
    command = [sys.executable, str(ROOT / "scripts" / "run_readme.py"), str(file)]
    out = subprocess.run(command, capture_output=True, text=True)
    assert out.returncode == status, out.stdout + out.stderr
    assert "skipped, it needs a model hub: seven billion weights" in out.stdout
    assert "README.md: 2 snippets run, 1 skipped" in out.stdout
    assert ("FAILED" in out.stdout) == bool(status)
