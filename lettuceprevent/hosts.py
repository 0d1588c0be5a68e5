"""A host as the commands use it: loaded with a word on what is going on, asked in its chat template.

Contract: torch and transformers are imported when a host is loaded, not before.
"""

from __future__ import annotations

import time
from typing import Any

from .assets import local_name
from .console import CommandError, progress, say


def has_template(tokenizer: Any) -> bool:
    """Whether a tokenizer has a chat template; its prompts hold their special tokens already."""
    return bool(getattr(tokenizer, "chat_template", None))


def prompt_text(tokenizer: Any, content: str) -> str:
    """`content` as one user turn where the tokenizer has a chat template, else with "Answer:" after it."""
    if not has_template(tokenizer):
        return f"{content}\n\nAnswer:"
    turn = [{"role": "user", "content": content}]
    return str(tokenizer.apply_chat_template(turn, tokenize=False, add_generation_prompt=True))


class Answer:
    """An answer, the seconds it took, the report, and whether it was cut off rather than ended."""

    def __init__(self, text: str, seconds: float, report: Any, cut: bool) -> None:
        self.text = text
        self.seconds = seconds
        self.report = report
        self.cut = cut


class Host:
    """A model and its tokenizer, loaded with a word on what is going on. Loading may raise CommandError.

    dtype: "auto" is the checkpoint's precision, but float32 on a CPU on which that one is slow.
    """

    def __init__(self, name: str, device: str | None = None, dtype: str = "auto") -> None:
        with progress("loading the libraries"):
            import torch
            from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSeq2SeqLM, AutoTokenizer
            from transformers.utils import logging

            from .precision import fast_dtype

            logging.set_verbosity_error()
            logging.disable_progress_bar()
        if dtype != "auto" and not isinstance(getattr(torch, dtype, None), torch.dtype):
            raise CommandError(f"--dtype: expected float32, bfloat16, float16 or auto, got {dtype!r}")
        with progress(f"loading {name}"):
            try:
                folder = local_name(name)
                config = AutoConfig.from_pretrained(folder)
                loader = AutoModelForSeq2SeqLM if config.is_encoder_decoder else AutoModelForCausalLM
                self.tokenizer = AutoTokenizer.from_pretrained(folder)
                self.model = loader.from_pretrained(folder, dtype=dtype).eval()
            except (OSError, ValueError) as error:
                reason = str(error).strip().splitlines()[0]
                raise CommandError(
                    f"--model: expected a Hugging Face model id or folder, got {name!r}: {reason}"
                ) from error
            chosen = device or ("cuda" if torch.cuda.is_available() else "cpu")
            try:
                self.model = self.model.to(chosen)
            except (RuntimeError, AssertionError) as error:
                raise CommandError(f"--device: {error}") from error
        fast = fast_dtype(self.model.dtype, chosen)
        if dtype == "auto" and fast != self.model.dtype:
            say(f"{str(self.model.dtype).removeprefix('torch.')} is slow on this CPU; {name} runs in float32")
            self.model = self.model.to(fast)

    def encode(self, context: str, question: str) -> dict[str, Any]:
        """The prompt: context and question as one user turn where the model has a chat template."""
        text = prompt_text(self.tokenizer, f"{context.strip()}\n\n{question.strip()}")
        inputs = self.tokenizer(
            text, return_tensors="pt", add_special_tokens=not has_template(self.tokenizer)
        )
        inputs.pop("token_type_ids", None)
        return {name: value.to(self.model.device) for name, value in inputs.items()}

    def answer(
        self,
        context: str,
        question: str,
        *,
        seed: int = 0,
        stream: bool = False,
        prevention: dict[str, Any] | None = None,
        trace: int = 0,
        **decoding: Any,
    ) -> Answer:
        """Generate one answer, with prevention where its options are given, printing it as it comes if
        `stream`."""
        import torch
        from transformers import TextStreamer

        from .generation import generate
        from .report import PreventionReport

        inputs = self.encode(context, question)
        if self.tokenizer.pad_token_id is None:
            eos = self.tokenizer.eos_token_id
            decoding["pad_token_id"] = eos[0] if isinstance(eos, list) else eos
        decoder_only = not self.model.config.is_encoder_decoder
        if stream:
            decoding["streamer"] = TextStreamer(
                self.tokenizer, skip_prompt=decoder_only, skip_special_tokens=True
            )
        report = PreventionReport(trace=trace)
        torch.manual_seed(seed)
        began = time.perf_counter()
        try:
            out = generate(
                self.model,
                tokenizer=self.tokenizer,
                input_text=context,
                query=question,
                report=report,
                **{"detector_type": None, **(prevention or {})},
                **inputs,
                **decoding,
            )
        except (ValueError, TypeError, OSError) as error:  # OSError: a detector's files
            raise CommandError(str(error)) from error
        seconds = time.perf_counter() - began
        new = out[0, inputs["input_ids"].shape[1] :] if decoder_only else out[0]
        cut = (
            len(new) >= decoding.get("max_new_tokens", 0)
            and int(new[-1]) not in self.tokenizer.all_special_ids
        )
        return Answer(self.tokenizer.decode(new, skip_special_tokens=True).strip(), seconds, report, cut)
