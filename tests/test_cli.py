from __future__ import annotations

import io
import json
import subprocess
import sys
from pathlib import Path

import pytest
from fakes import make_llama, make_probe, make_tokenizer
from transformers import AutoModelForCausalLM

from lettuceprevent.cli import main, mark_difference

CONTEXT = "Revenue was 2400 million in 2021 and 3100 million in 2022."


@pytest.fixture(scope="module")
def host(tmp_path_factory):
    folder = tmp_path_factory.mktemp("host")
    tokenizer = make_tokenizer()
    tokenizer.save_pretrained(folder)
    make_llama(len(tokenizer)).save_pretrained(folder)
    return str(folder)


@pytest.fixture
def context(tmp_path):
    path = tmp_path / "context.txt"
    path.write_text(CONTEXT, encoding="utf-8")
    return str(path)


def answer(tmp_path, text):
    path = tmp_path / "answer.txt"
    path.write_text(text, encoding="utf-8")
    return str(path)


def test_check(context, tmp_path, capsys):
    assert main(["check", context, answer(tmp_path, "It was 2.4 billion in 2021.")]) == 0
    out = capsys.readouterr().out
    assert "2.4 billion\tsupported by '2400 million'" in out
    assert main(["check", context, answer(tmp_path, "It rose by 29.2%.")]) == 1
    assert "29.2%\tunsupported" in capsys.readouterr().out
    assert main(["check", context, answer(tmp_path, "")]) == 0


def test_check_options_and_json(context, tmp_path, capsys):
    path = answer(tmp_path, "It rose by 700 million.")
    assert main(["check", context, path, "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert found["unsupported"] == 1
    assert found["verdicts"][0]["status"] == "unsupported"
    assert main(["check", context, path, "--derived"]) == 0
    assert main(["check", context, path, "--question", "Did it rise by 700 million?"]) == 0


def test_standard_input(context, capsys, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO("In 2023."))
    assert main(["check", context, "-"]) == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["check", "-", "-"], "expected one of CONTEXT and ANSWER to be a file"),
        (["check", "{missing}", "{context}"], "context: expected a text file"),
        (["check", "{empty}", "{context}"], "context: expected text"),
        (["check", "{binary}", "{context}"], "expected UTF-8"),
        (["generate", "--model", "x", "--context", "{empty}", "--question", "q"], "context: expected text"),
        (
            ["generate", "--model", "x", "--context", "{context}", "--question", "q", "--detector", "digits"],
            "expected one of .*number",
        ),
        (
            ["generate", "--model", "{missing}", "--context", "{context}", "--question", "q"],
            "--model: expected",
        ),
        (["demo", "--model", "{missing}"], "--model: expected"),
    ],
    ids=lambda value: " ".join(value)[:40] if isinstance(value, list) else "",
)
def test_mistakes(arguments, message, context, tmp_path, capsys):
    (tmp_path / "empty").write_text(" \n")
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    names = {name: str(tmp_path / name) for name in ("missing", "empty", "binary")} | {"context": context}
    assert main([argument.format(**names) for argument in arguments]) == 2
    error = capsys.readouterr().err
    assert "Traceback" not in error
    import re

    assert re.search(message, error), error


def test_usage_errors_exit_with_2(capsys):
    for arguments in ([], ["generate"], ["check", "only-one"]):
        with pytest.raises(SystemExit) as raised:
            main(arguments)
        assert raised.value.code == 2


def test_generate_streams(host, context, capsys, tmp_path):
    arguments = [
        "generate",
        "--model",
        host,
        "--context",
        context,
        "--question",
        "And?",
        "--max-new-tokens",
        "8",
    ]
    report = tmp_path / "report.json"
    assert main([*arguments, "--compare", "--report", str(report)]) == 0
    captured = capsys.readouterr()
    assert "the difference:" in captured.out
    assert "loading" in captured.err
    assert "steps" in captured.err
    assert json.loads(report.read_text())["counters"]["steps"] > 0


def test_generate_json(host, context, capsys):
    arguments = [
        "generate",
        "--model",
        host,
        "--context",
        context,
        "--question",
        "And?",
        "--max-new-tokens",
        "8",
    ]
    assert (
        main([*arguments, "--json", "--compare", "--num-beams", "2", "--on-unsupported", "substitute"]) == 0
    )
    found = json.loads(capsys.readouterr().out)
    assert set(found) == {"answer", "plain", "report"}
    assert found["report"]["options"]["on_unsupported"] == "substitute"


def test_generate_with_a_probe(host, context, capsys, tmp_path):
    make_probe(AutoModelForCausalLM.from_pretrained(host)).save(tmp_path / "probe")
    arguments = ["generate", "--model", host, "--context", context, "--question", "And?"]
    arguments += ["--max-new-tokens", "12", "--detector", "probe"]
    given = [*arguments, "--probe", str(tmp_path / "probe")]
    assert main([*given, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["report"]
    (sequence,) = found["sequences"]
    assert len(sequence["risks"]["before"]) == sequence["tokens"] == found["counters"]["steps"]
    assert main(given) == 0
    assert f"the probe flags {sum(e['end'] - e['start'] for e in sequence['risks']['flagged'])} of " in (
        capsys.readouterr().err
    )
    assert main([*given, "--gate", "probe", "--gate-threshold", "0.5"]) == 2
    assert "gate: expected a model detector" in capsys.readouterr().err
    assert main(arguments) == 2
    assert "probe: expected one made for the host host" in capsys.readouterr().err
    assert main([*arguments, "--probe", str(tmp_path)]) == 2
    assert "probe: expected a folder" in capsys.readouterr().err


def test_demo(host, capsys):
    assert main(["demo", "--model", host, "--max-new-tokens", "6"]) == 0
    out = capsys.readouterr().out
    assert "Revenue was 2400 million in 2021 and 3100 million in 2022." in out
    assert out.count("-- the difference") == 3
    assert "Where the time went" in out
    assert "cannot state a growth rate" in " ".join(out.split())


def test_mark_difference():
    assert mark_difference("it was 5 then", "it was then", color=False) == "it was [-5 -]then"
    assert mark_difference("a b", "a c", color=False) == "a [-b-]{+c+}"
    assert "\033[32;1mc" in mark_difference("a b", "a c", color=True)


def test_a_failure_is_one_line_also_where_the_command_is_run_as_a_module(tmp_path):
    """Run so, cli.py is another module than `lettuceprevent.cli`, and so would be an error class in it."""
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"id": "1", "query": "q", "context": "c"}\n', encoding="utf-8")
    done = subprocess.run(
        [
            sys.executable, "-m", "lettuceprevent.cli", "evaluate", "--model", str(tmp_path / "none"),
            "--prompts", str(prompts), "--out", str(tmp_path / "run"),
        ],
        capture_output=True, text=True, cwd=Path(__file__).parents[1],
    )  # fmt: skip
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert done.stderr.splitlines()[-1].startswith("lettuceprevent: --model: expected")
