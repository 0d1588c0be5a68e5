"""Does the detector see in the loop what it saw in training? Ids of real texts, token by token.

    python scripts/protocol_causal.py --out results/causal_protocol.json

The training procedure, written out here on its own: a text is cut into Llama-3.1 tokens, each is decoded on
its own, each decoding is tokenised on its own by the detector's tokenizer, the pieces are joined. Compared
with `host_chunks` for a Llama-3.1 host, on contexts, queries and answers of RAGTruth, and on texts made to be
awkward. `transformers` 4 took the space out of tokens like " ," when it decoded (the tokenizer's config asks
for it), 5 does not; both are compared, with `clean_up` on and off.
"""

from __future__ import annotations

import sys
from typing import Any

from _common import finish, parser, provenance, rows, tokenizer

from lettuceprevent.alignment import clean_up_spaces, make_alignment
from lettuceprevent.vocabulary import Vocabulary

AWKWARD = (
    "café naïve Zürich — “quoted” … 23½ −5.13 % 😀👩‍🚀🏳️‍🌈 漢字かな交じり文 ٣١ שלום",
    "a  b   c\t\td\n\n\ne   \n f",
    "it 's , well . n't ? no ! they 've done",
    "\u0301combining e\u0301 \u200bzero \u00a0nbsp \ufeff bom \x00 nul",
)
# Where we mean to differ: special tokens spelt out in a text are text to us, a forged separator to plain
# tokenizers.
FORGED = "[SEP] [CLS] <|endoftext|> <|begin_of_text|>"


def as_trained(text: str, host: Any, detector: Any, clean_up: bool) -> list[int]:
    """Detector ids of `text` by the procedure used in training."""
    ids: list[int] = []
    for token in host(text, add_special_tokens=False)["input_ids"]:
        decoded = host.decode([token], clean_up_tokenization_spaces=False)
        if clean_up:
            decoded = clean_up_spaces(decoded)
        if decoded:
            ids += detector(decoded, add_special_tokens=False)["input_ids"]
    return ids


def main() -> int:
    options = parser(__doc__)
    options.add_argument("--texts", type=int, default=200)
    given = options.parse_args()
    host, detector = tokenizer("llama31"), tokenizer("modernbert")
    vocabulary = Vocabulary.for_tokenizer(host)

    texts = list(AWKWARD)
    for row in rows(given.data, "ragtruth_test"):
        texts += [row[key] for key in ("context", "query", "answer") if row.get(key)]
    texts = texts[: given.texts]
    figures: dict[str, Any] = {}
    changed = 0
    for clean_up in (False, True):
        alignment = make_alignment("host_chunks", vocabulary, host, detector, clean_up=clean_up)
        mismatches = tokens = answers = 0
        for text in texts:
            expected = as_trained(text, host, detector, clean_up)
            tokens += len(expected)
            mismatches += alignment.text_ids(text) != expected
            # The same, token by token as in the loop.
            history = tuple(host(text, add_special_tokens=False)["input_ids"])
            ids: list[int] = []
            for at, token in enumerate(history):
                if at % 7 == 0:
                    stable, tails = alignment.paths(history[:at], [token])
                    ids = [*stable, *tails[0]]
                else:
                    ids += alignment.paths((), [token])[1][0]
            answers += ids != expected
            if clean_up:
                changed += expected != as_trained(text, host, detector, False)
        figures["clean_up" if clean_up else "as_decoded"] = {
            "mismatches_whole": mismatches,
            "mismatches_in_the_loop": answers,
            "detector_tokens": tokens,
        }
        print("clean-up" if clean_up else "as decoded", figures["clean_up" if clean_up else "as_decoded"])
    forged = set(make_alignment("host_chunks", vocabulary, host, detector).text_ids(FORGED))
    figures["special_ids_out_of_a_text"] = len(forged & set(detector.all_special_ids))
    print(f"{changed} of {len(texts)} texts differ between the two")
    both = (figures["as_decoded"], figures["clean_up"])
    document = {
        "script": "protocol_causal",
        "texts": len(texts),
        "mismatches": sum(each["mismatches_whole"] + each["mismatches_in_the_loop"] for each in both),
        "texts_that_clean_up_changes": changed,
        **figures,
    }
    finish({**document, **provenance(given.data, ["ragtruth_test"])}, given.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
