"""Estimates the tokens of a prompt, cheaply and learned from what back ends report.

The estimate is a weighted sum over the parts of a prompt (letters, spaces, digits, han, kana, messages, ...). Weights
start from measured averages of a tokenizer and are learned per model from `usage.prompt_tokens`, by Bayesian linear
regression on relative errors (`equations`). An update is O(1).
An exact count of one tokenizer is in `exact_tokens`; it costs too much for every request.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from enum import IntEnum
from operator import mul

from gateway.request import token_sums
from gateway.request.equations import Equations, Sums


class Part(IntEnum):
    """Parts of a prompt, in the order of `Features.profile`; counted in characters unless noted otherwise."""

    LETTER = 0
    SPACE = 1
    DIGIT = 2
    SIGN = 3
    LATIN_EXTRA = 4
    CYRILLIC = 5
    HAN = 6
    KANA = 7
    HANGUL = 8
    OTHER = 9
    TOOL = 10
    """Bytes of tool definitions."""
    IMAGE = 11
    """Number of images, audio clips and videos."""
    ID = 12
    """Prompt tokens given as ids."""
    MESSAGE = 13
    """Number of messages; each costs its role markers."""
    ONE = 14
    """Always 1; its weight is the fixed cost of a chat template."""


_SIZE = len(Part)
Profile = tuple[int, ...]
#                LETTER SPACE DIGIT SIGN LATIN CYR   HAN   KANA HANGUL OTHER TOOL IMAGE  ID MSG ONE
_GEMMA = (0.115, 0.56, 1.00, 0.75, 0.48, 0.22, 0.74, 0.64, 0.60, 0.45, 0.27, 262.0, 1.0, 4.0, 4.0)
_TEXT_WEIGHTS = _GEMMA[: Part.TOOL]
_O200K = (0.111, 0.574, 0.77, 0.70, 0.52, 0.19, 0.92, 0.68, 0.55, 0.35, 0.23, 262.0, 1.0, 4.0, 3.0)
_OPENAI = re.compile(r"gpt-|gpt_oss|^o[134]\b", re.IGNORECASE)
MOST_CHARACTERS = 16
"""Most characters per token, averaged over a whole prompt; a few long runs of spaces or signs may exceed it."""
_MAX_MODELS = 256
_MOST_SHARED = 64
_HALF_LIFE = 86_400.0
"""Seconds after which what another process has observed counts half: a model's tokenizer seldom changes."""
_EAGER = 16
_KNOWN = 100.0
_ONE_IN = 4

# Continuation bytes are dropped; the lead byte of each character becomes the letter of its script.
_CONTINUATION = bytes(range(0x80, 0xC0))
_SCRIPTS = {
    "l": (0xC2, 0xCF), "c": (0xD0, 0xD4), "o": (0xD5, 0xE2), "k": (0xE3, 0xE3), "h": (0xE4, 0xE9),
    "g": (0xEA, 0xED), "e": (0xEE, 0xF4),
}  # fmt: skip


def _script_table() -> bytes:
    table = bytearray(range(256))
    for letter, (first, last) in _SCRIPTS.items():
        for byte in range(first, last + 1):
            table[byte] = 0x80 + ord(letter) % 32
    return bytes(table)


_TABLE = _script_table()
_MARK = {letter: bytes([0x80 + ord(letter) % 32]) for letter in _SCRIPTS}
_MARKS = b"".join(_MARK.values())
# An emoji takes two or three tokens, a letter of a rare script about half a token.
_WIDE = (
    (_MARK["k"], Part.KANA, 1), (_MARK["h"], Part.HAN, 1), (_MARK["g"], Part.HANGUL, 1),
    (_MARK["l"], Part.LATIN_EXTRA, 1), (_MARK["c"], Part.CYRILLIC, 1), (_MARK["o"], Part.OTHER, 1),
    (_MARK["e"], Part.OTHER, 4),
)  # fmt: skip
"""(mark, part, times) of each script, those of long texts first: counting ends where all characters are told."""
_LETTERS = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_DIGITS = b"0123456789"


def count_parts(text: str) -> list[int]:
    """Counts `Part.LETTER` to `Part.OTHER` of a text, by C-level passes over its UTF-8 bytes; 1-3 µs per kilobyte."""
    raw = text.encode("utf-8", "surrogatepass")
    # Each pass deletes what it counts. Where most characters are wide, the few others are set apart first; in a Latin
    # text, a first pass over letters leaves little.
    if len(raw) > 2 * len(text):
        marks = raw.translate(_TABLE, _CONTINUATION)
        plain = marks.translate(None, _MARKS)
        wide = len(marks) - len(plain)
        unlettered = plain.translate(None, _LETTERS)
        letters = len(plain) - len(unlettered)
    else:
        unlettered = raw.translate(None, _LETTERS)
        letters = len(raw) - len(unlettered)
        wide, marks = 0, unlettered
        if len(raw) > len(text):
            marks = unlettered.translate(_TABLE, _CONTINUATION)
            unlettered = marks.translate(None, _MARKS)
            wide = len(marks) - len(unlettered)
    spaces, others = unlettered.count(b" "), len(unlettered)
    digits = others - len(unlettered.translate(None, _DIGITS))
    parts = [letters, spaces, digits, others - spaces - digits, 0, 0, 0, 0, 0, 0]
    for mark, part, times in _WIDE if wide else ():
        found = marks.count(mark)
        parts[part] += times * found
        wide -= found
        if not wide:
            break
    return parts


def rough_tokens(text: str) -> int:
    """Estimated tokens of a text by the starting weights, within about 15 % for prose. For texts of bounded length."""
    return round(rough_total(count_parts(text)))


def rough_total(parts: Sequence[int]) -> float:
    """Estimated tokens of counted parts, or of the text parts of a profile."""
    total: float = sum(map(mul, _TEXT_WEIGHTS, parts))
    return total


class TokenEstimator:
    """Estimates prompt tokens from a profile, per model; learns from the usage that back ends report."""

    def __init__(self) -> None:
        self._models: dict[str, Equations] = {}

    def estimate(self, model: str, profile: Profile) -> int:
        """Estimated prompt tokens, at least 1; by the starting weights for a model without observations."""
        weights = self._models.get(model)
        ratios = weights.solved if weights else _start(model)
        total: float = sum(map(mul, ratios, profile))
        return max(1, round(total))

    def observe(self, model: str, profile: Profile, prompt_tokens: int) -> None:
        """Learns from the true count of a finished request. Once a model is known well, one count in four is used.

        Takes about 5 µs; every sixteenth observation solves the equations, which takes about 50 µs more.
        """
        if prompt_tokens <= 0 or len(profile) != _SIZE:
            return
        # Fewer tokens than this are impossible: the prompt was cut, or the back end does not count.
        if prompt_tokens * MOST_CHARACTERS < sum(profile[: Part.TOOL]):
            return
        weights = self._models.get(model)
        if weights is not None and weights.seen > _KNOWN:
            weights.passed += 1
            if weights.passed % _ONE_IN:
                return
        if weights is None and (weights := self._weights(model)) is None:
            return
        guess = self.estimate(model, profile)
        error = abs(math.log(guess / prompt_tokens)) if weights.solved else 0.0
        # Huber weight: an outlier such as a truncated prompt counts less.
        weight = 1.0 if error < 0.2 or weights.seen < _EAGER else 0.2 / error
        scale = weight / max(prompt_tokens, guess if weights.solved else 0) ** 2
        weights.add(profile, prompt_tokens, scale)
        if weights.seen < _EAGER or weights.pending >= _EAGER or not weights.solved:
            weights.solve()

    def snapshot(self, at: float = 0.0) -> bytes:
        """What this process has observed itself of the models seen most, for other processes and for its own next
        start. `at`: seconds since the epoch."""
        most = sorted(self._models.items(), key=lambda item: -item[1].seen)[:_MOST_SHARED]
        return token_sums.pack({name: weights.own() for name, weights in most if weights.seen}, _SIZE, at)

    def merge(self, snapshots: Mapping[str, bytes], own: str | None = None, *, resume: bool = False) -> None:
        """Takes the other processes' snapshots in place of what they sent before; `own` names the one to leave out, or,
        with `resume`, to take as this process's own from before a restart. That once.

        A snapshot counts for less the older it is than the newest one. All together fill up what this process lacks of
        a hundred observations, so that its own decide where they disagree. Broken ones say nothing.
        """
        read = {name: found for name, data in snapshots.items() if (found := _unpacked(data)) is not None}
        newest = max((at for at, _ in read.values()), default=0.0)
        heard: dict[str, Sums] = {}
        for name, (at, models) in read.items():
            part = 0.5 ** ((newest - at) / _HALF_LIFE)
            for model, sums in models.items():
                if (weights := self._weights(model)) is None:
                    continue
                if name != own:
                    faded = sums.times(part)
                    heard[model] = heard[model].plus(faded) if model in heard else faded
                elif resume:
                    weights.resume(sums)
        for model, weights in self._models.items():
            lacking = _KNOWN - weights.seen
            weights.hear(heard[model].at_most(lacking) if model in heard and lacking > 0.0 else None)

    def _weights(self, model: str) -> Equations | None:
        """The model's equations, made if there is room for another model; else None."""
        weights = self._models.get(model)
        if weights is None and len(self._models) < _MAX_MODELS:
            weights = self._models[model] = Equations(_start(model))
        return weights

    def __len__(self) -> int:
        """Number of models with learned weights."""
        return len(self._models)


def _unpacked(data: bytes) -> tuple[float, dict[str, Sums]] | None:
    try:
        return token_sums.unpack(data, _SIZE)
    except ValueError:
        return None


def _start(model: str) -> Sequence[float]:
    return _O200K if _OPENAI.search(model[:200]) else _GEMMA
