"""The three routes by way of custom_generate, each in an interpreter where `lettuceprevent` is not
installed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from fakes import make_llama, make_probe, make_tokenizer
from transformers.dynamic_module_utils import get_relative_import_files

REPOSITORY = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(REPOSITORY / "scripts"))
import export_hub_module  # noqa: E402

PRELUDE = """
import importlib, sys
REPOSITORY = sys.argv[1]
sys.path[:] = [p for p in sys.path if p not in ("", REPOSITORY)]
sys.meta_path[:] = [f for f in sys.meta_path if "editable" not in repr(f).lower()]
sys.path_hooks[:] = [h for h in sys.path_hooks if "editable" not in repr(h).lower()]
sys.path_importer_cache.clear()
try:
    import lettuceprevent
except ImportError:
    pass
else:
    raise SystemExit(f"lettuceprevent is importable from {lettuceprevent.__file__}")
import torch
torch.set_num_threads(1)
from transformers import AutoModelForCausalLM, AutoTokenizer
context = "Revenue was 2400 million in 2021 and 3100 million in 2022."
folder, where = sys.argv[2:4]
tokenizer = AutoTokenizer.from_pretrained(folder)
inputs = tokenizer(context + " So ", return_tensors="pt", return_token_type_ids=False)
report = {}
options = dict(tokenizer=tokenizer, input_text=context, report=report, max_new_tokens=12, do_sample=False)
"""
CUSTOM = """
model = AutoModelForCausalLM.from_pretrained(folder)
out = model.generate(**inputs, custom_generate=where, trust_remote_code=True, **options)
"""
OWN = """
model = AutoModelForCausalLM.from_pretrained(where, trust_remote_code=True)
assert type(model.generate).__name__ == "partial", model.generate
again = model.generate(inputs["input_ids"], attention_mask=inputs["attention_mask"], **options)
report.clear()
out = model.generate(**inputs, **options)
assert out.tolist() == again.tolist()
try:
    model.generate(**inputs, tokenizer=tokenizer)
except ValueError as error:
    assert "input_text" in str(error), error
else:
    raise SystemExit("expected an error without input_text")
plain = model.generate(**inputs, detector_type=None, max_new_tokens=12, do_sample=False)
"""
CODA = """
assert report["schema_version"] == 1 and report["counters"]["steps"] > 0, report
print("IDS", out[0].tolist())
"""


@pytest.fixture(scope="module")
def host(tmp_path_factory):
    """A saved tiny model with its tokenizer."""
    folder = tmp_path_factory.mktemp("host")
    tokenizer = make_tokenizer()
    tokenizer.save_pretrained(folder)
    make_llama(len(tokenizer)).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    folder = tmp_path_factory.mktemp("exported") / "lettuceprevent-module"
    export_hub_module.export(folder)
    return folder


def run(tmp_path, body, host, where):
    environment = {**os.environ, "HF_MODULES_CACHE": str(tmp_path / "modules"), "HF_HUB_OFFLINE": "1"}
    environment.pop("PYTHONPATH", None)
    command = [sys.executable, "-c", PRELUDE + body + CODA, str(REPOSITORY), str(host), str(where)]
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return next(line for line in done.stdout.splitlines() if line.startswith("IDS"))


@pytest.fixture(scope="module")
def want(host):
    """The ids by way of the installed package."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from lettuceprevent.generation import generate

    model = AutoModelForCausalLM.from_pretrained(host)
    tokenizer = AutoTokenizer.from_pretrained(host)
    context = "Revenue was 2400 million in 2021 and 3100 million in 2022."
    ids = tokenizer(context + " So ", return_tensors="pt")["input_ids"]
    out = generate(model, ids, tokenizer=tokenizer, input_text=context, max_new_tokens=12, do_sample=False)
    return f"IDS {out[0].tolist()}"


def test_from_the_repository_folder(tmp_path, host, want):
    assert run(tmp_path, CUSTOM, host, REPOSITORY) == want


def test_from_the_export(tmp_path, host, exported, want):
    assert run(tmp_path, CUSTOM, host, exported) == want


WATCHED = """
model = AutoModelForCausalLM.from_pretrained(folder)
options["detector_type"] = "probe"
out = model.generate(**inputs, custom_generate=where, trust_remote_code=True, **options)
(told,) = report["sequences"]
assert report["options"]["probe"] == "tiny" and len(told["risks"]["before"]) == told["tokens"] > 0, report
assert (out == model.generate(**inputs, max_new_tokens=12, do_sample=False)).all()
"""


def test_the_export_carries_the_probes(tmp_path, host, monkeypatch):
    from transformers import AutoModelForCausalLM

    make_probe(AutoModelForCausalLM.from_pretrained(host)).save(tmp_path / "probes" / "tiny")
    monkeypatch.setattr(export_hub_module, "PROBES", tmp_path / "probes")
    export_hub_module.export(tmp_path / "exported")
    run(tmp_path, WATCHED, host, tmp_path / "exported")


def test_from_a_model_folder_with_the_export_in_it(tmp_path, host, exported, want):
    model = tmp_path / "model-with-it"
    shutil.copytree(host, model)
    shutil.copytree(exported / "custom_generate", model / "custom_generate")
    assert run(tmp_path, OWN, host, model) == want


def test_the_export_is_flat_and_complete(exported):
    files = {path.relative_to(exported).as_posix() for path in exported.rglob("*") if path.is_file()}
    assert {
        "README.md",
        "LICENSE",
        "custom_generate/generate.py",
        "custom_generate/requirements.txt",
    } <= files
    assert not [name for name in files if name.count("/") > 1]
    assert "- custom_generate" in (exported / "README.md").read_text(encoding="utf-8").split("---")[1]
    for module in export_hub_module.modules_needed():
        copy = (exported / "custom_generate" / f"{module}.py").read_bytes()
        assert copy == (REPOSITORY / "lettuceprevent" / f"{module}.py").read_bytes()
        # Absolute imports of the package, or of subpackages, would only work where it is installed.
        text = copy.decode("utf-8")
        assert "from lettuceprevent" not in text
        assert "import lettuceprevent" not in text
    # What the loader will copy, by its own rules.
    found = get_relative_import_files(exported / "custom_generate" / "generate.py")
    needed = {*export_hub_module.modules_needed(), export_hub_module.DATA_MODULE}
    assert {Path(path).stem for path in found} == needed


def test_the_export_replaces_an_earlier_one_and_nothing_else(tmp_path, exported):
    target = tmp_path / "again"
    shutil.copytree(exported, target)
    (target / "custom_generate" / "stale.py").write_text("")
    export_hub_module.export(target)
    assert not (target / "custom_generate" / "stale.py").exists()
    other = tmp_path / "other" / "custom_generate"
    other.mkdir(parents=True)
    (other / "generate.py").write_text("mine")
    with pytest.raises(SystemExit, match="expected"):
        export_hub_module.export(tmp_path / "other")
