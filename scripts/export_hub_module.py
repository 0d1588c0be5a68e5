"""Write a self-contained custom_generate folder, fit for a repository on the Hub or for copying into a
model's.

    python scripts/export_hub_module.py build/lettuceprevent
    model.generate(**inputs, custom_generate="build/lettuceprevent", trust_remote_code=True, tokenizer=tok,
    ...)

The loader of transformers copies `custom_generate/generate.py` and the flat `.py` files that it imports
relatively, and nothing else: so that is what this writes, unchanged copies of the package's modules. The package's
probes are data, and go into one more module.
"""

from __future__ import annotations

import argparse
import ast
import base64
import shutil
import sys
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
PACKAGE = REPOSITORY / "lettuceprevent"
SOURCE = REPOSITORY / "custom_generate"  # the model card and the requirements
PROBES = PACKAGE / "probes"
ROOT_MODULE = "generation"
DATA_MODULE = "probe_data"

GENERATE = '''"""`model.generate(..., custom_generate=..., trust_remote_code=True)` comes here (README.md)."""

from .generation import generate as _generate


def generate(*args, model, **kwargs):
    """`model` comes by name, everything else as generate() takes it."""
    return _generate(model, *args, **kwargs)


def _siblings():
    # Never called: the loader copies the files that it finds imported in this form, from here on.
'''


def modules_needed() -> list[str]:
    """The modules that generation imports, directly or not."""
    needed: set[str] = set()
    todo = [ROOT_MODULE]
    while todo:
        name = todo.pop()
        if name in needed:
            continue
        path = PACKAGE / f"{name}.py"
        if not path.is_file():
            raise SystemExit(f"expected a flat module {path.name} beside {ROOT_MODULE}.py, found none")
        needed.add(name)
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.level == 1:
                todo += [node.module] if node.module else [alias.name for alias in node.names]
    return sorted(needed)


def probe_data() -> str:
    """A module with the package's probes: name -> (card, base64 of the safetensors file)."""
    found = {
        path.parent.name: (
            path.read_text(encoding="utf-8"),
            base64.b64encode(path.with_suffix(".safetensors").read_bytes()).decode(),
        )
        for path in sorted(PROBES.glob("*/probe.json"))
    }
    return f'"""The probes that come with the package."""\n\nPROBES = {found!r}\n'


def export(target: Path) -> list[Path]:
    """Write the folder; returns the files written. Refuses a folder that holds something else."""
    folder = target / "custom_generate"
    if folder.exists():
        if not (folder / "generation.py").exists() and any(folder.iterdir()):
            raise SystemExit(f"expected {folder} to be absent or an earlier export, found something else")
        shutil.rmtree(folder)
    folder.mkdir(parents=True)
    written = [target / "README.md", folder / "generate.py", folder / "requirements.txt"]
    shutil.copyfile(SOURCE / "README.md", written[0])
    modules = modules_needed()
    imports = "".join(f"    from .{name} import __name__\n" for name in [*modules, DATA_MODULE])
    written[1].write_text(GENERATE + imports, encoding="utf-8")
    shutil.copyfile(SOURCE / "requirements.txt", written[2])
    for name in modules:
        written.append(folder / f"{name}.py")
        shutil.copyfile(PACKAGE / f"{name}.py", written[-1])
    written.append(folder / f"{DATA_MODULE}.py")
    written[-1].write_text(probe_data(), encoding="utf-8")
    shutil.copyfile(REPOSITORY / "LICENSE", target / "LICENSE")
    return [*written, target / "LICENSE"]


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Write a self-contained custom_generate folder.")
    parser.add_argument("target", type=Path, help="folder to write (an earlier export there is replaced)")
    options = parser.parse_args(argv)
    for path in export(options.target):
        print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
