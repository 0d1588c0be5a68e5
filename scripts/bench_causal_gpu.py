"""The causal detector beside a 7B-shaped host on a GPU: cost per checked step, ratio to plain decoding, host syncs.

    python scripts/bench_causal_gpu.py --out results/causal_gpu.json

The host is a Llama of 7B shape with random weights in bfloat16, the detector the random 68M one, also in bfloat16;
prompts of 900 tokens, 200 new ones. Exits with a message, and no document, where there is no GPU. `--small` uses a tiny
host on whatever device there is, to try the script itself.
"""

from __future__ import annotations

import statistics
import sys
import time
import warnings
from typing import Any

import torch
from _causal import Texts, checkpoint_folder, detector_of
from _common import finish, parser, provenance, tokenizer

from lettuceprevent.checkpoint import load_checkpoint
from lettuceprevent.detectors import ScoreRequest
from lettuceprevent.processor import PreventionLogitsProcessor
from lettuceprevent.tree import CausalDetector
from lettuceprevent.vocabulary import Vocabulary


def wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def random_host(vocabulary: int, device: torch.device, small: bool) -> Any:
    """A Llama with random weights, bfloat16."""
    from transformers import AutoModelForCausalLM, LlamaConfig

    shape: dict[str, Any] = (
        {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
        if small
        else {
            "hidden_size": 4096,
            "intermediate_size": 11008,
            "num_hidden_layers": 32,
            "num_attention_heads": 32,
        }
    )
    config = LlamaConfig(vocab_size=vocabulary, max_position_embeddings=4096, **shape)
    default = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        with torch.device(device):
            return AutoModelForCausalLM.from_config(config).eval()
    finally:
        torch.set_default_dtype(default)


def syncs(action: Any) -> int:
    """How often `action` makes the host wait for the GPU, by torch's own debug mode."""
    torch.cuda.set_sync_debug_mode("warn")
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        action()
    torch.cuda.set_sync_debug_mode("default")
    return sum("synchroniz" in str(each.message) for each in seen)


def main() -> int:
    options = parser(__doc__)
    options.add_argument("--small", action="store_true")
    options.add_argument("--prompt-tokens", type=int, default=900)
    options.add_argument("--new-tokens", type=int, default=200)
    options.add_argument("--repeats", type=int, default=5)
    given = options.parse_args()
    if not torch.cuda.is_available() and not given.small:
        print("no GPU here; nothing was measured", file=sys.stderr)
        return 3
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    host_tokenizer = tokenizer("llama31")
    vocabulary = Vocabulary.for_tokenizer(host_tokenizer)
    host = random_host(max(vocabulary.size, 128_256), device, given.small)
    folder = checkpoint_folder("tiny" if given.small else "full")
    checkpoint = load_checkpoint(folder, device=device, dtype="bfloat16")
    texts = Texts(detector_of(folder), seed=2)
    size = 100 if given.small else given.prompt_tokens
    grounding = texts.at_length(size, 0).grounding
    detector = CausalDetector.for_host(host_tokenizer, vocabulary, [grounding], detector_model=checkpoint)

    prompt = torch.randint(10, 100_000, (1, size), device=device)
    fixed = {"max_new_tokens": given.new_tokens, "min_new_tokens": given.new_tokens, "do_sample": False}
    fixed |= {"attention_mask": torch.ones_like(prompt), "pad_token_id": 0}

    def plain() -> None:
        host.generate(prompt, **fixed)
        wait(device)

    def checked() -> None:
        processor = PreventionLogitsProcessor(
            vocabulary,
            [grounding],
            [detector],
            skip_threshold=1.0,
            confidence_threshold=1.0,
            prompt_length=size,
        )
        detector.drop_caches()  # the context is read anew in every run, as it would be
        host.generate(prompt, logits_processor=[processor], **fixed)
        wait(device)

    seconds: dict[str, list[float]] = {"plain": [], "checked": []}
    for run in range(given.repeats + 1):
        for name, action in (("plain", plain), ("checked", checked)):
            start = time.perf_counter()
            action()
            if run:  # the first warms up
                seconds[name].append(time.perf_counter() - start)

    history: tuple[int, ...] = ()
    steps = []
    chance = texts.chance
    for _ in range(given.new_tokens):
        request = ScoreRequest(grounding, history, tuple(chance.sample(range(1_000, 100_000), 10)))
        wait(device)
        start = time.perf_counter()
        detector.score([request])
        steps.append(1e3 * (time.perf_counter() - start))
        history += (request.candidates[0],)
    ratios = [b / a for a, b in zip(seconds["plain"], seconds["checked"], strict=True)]
    document = {
        "script": "bench_causal_gpu",
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        "step_ms": statistics.median(steps[10:]),
        "time_ratio": statistics.median(ratios),
        "seconds": seconds,
        "host_syncs_per_step": (
            syncs(lambda: detector.score([ScoreRequest(grounding, history, request.candidates)]))
            if device.type == "cuda"
            else None
        ),
        "small": given.small,
    }
    print(f"step {document['step_ms']:.2f} ms, {document['time_ratio']:.2f} times plain decoding")
    finish({**document, **provenance(given.data, [])}, given.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
