"""Locates the parts of a turn that may hold the instruction: its first and its last block.

Code fences and quoted documents are cut out first. Only the first 240 and the last 320 characters of a long turn are
returned, so a document between them costs nothing and does not count.
"""

from __future__ import annotations

import re

from gateway.records import record
from gateway.request.words import newlines

SHORT = 400
"""Texts up to this length are taken whole, in characters."""
_HEAD = 240
_TAIL = 320
_SCAN = 6000
_QUOTED = re.compile(
    r'"""[^"]{80,}?"""|<(document|article|text|context|passage|doc|file|content|data|source)(?=[\s>])[^>]{0,80}>.{80,}?</\1>',
    re.DOTALL | re.IGNORECASE,
)
# Ends and beginnings of code lines. Each begins with a plain character, so that the regex engine can skip to it.
_CODE_END = re.compile(r"[{};]\s*$", re.MULTILINE)
_CODE_START = re.compile(
    r"\n\s{0,40}(?:def|class|import|from|function|const|let|var|return|public|#include|SELECT|if \()\b"
)


@record
class Ask:
    """The parts of a turn that may hold the instruction. `head` is all of a short turn; `tail` is then empty."""

    head: str
    tail: str = ""


def locate(text: str) -> Ask:
    """The candidates for the instruction in a user turn."""
    if len(text) > 2 * _SCAN:
        text = text[:_SCAN] + "\n\n" + text[-_SCAN:]
    # A search for one character is many times as fast as one for three, so it goes first.
    if "`" in text and "```" in text:
        text = "\n\n".join(text.split("```")[0::2]).strip() or text
    if len(text) > 160 and (('"' in text and '"""' in text) or ("<" in text and "</" in text)):
        text = _QUOTED.sub("\n\n", text).strip() or text
    if len(text) <= SHORT:
        return Ask(text)
    return Ask(_first_block(text[:_HEAD]), _last_block(text[-_TAIL:].rstrip()))


def ends(text: str) -> str:
    """The first and last characters of a long system prompt; a short one unchanged."""
    return text if len(text) <= SHORT else text[:_HEAD] + "\n" + text[-_TAIL:]


def code_share(text: str) -> float:
    """Share of a turn that is code, 0..1: by fences, else by the look of its lines. Reads at most 12,000 characters."""
    if len(text) > 2 * _SCAN:
        text = text[:_SCAN] + text[-_SCAN:]
    if "`" in text and "```" in text:
        return sum(map(len, text.split("```")[1::2])) / len(text)
    sample = text[:2000]
    if not ("(" in sample or ";" in sample or "{" in sample) or (lines := newlines(sample)) < 3:
        return 0.0
    signs = len(_CODE_START.findall("\n" + sample))
    if ";" in sample or "{" in sample or "}" in sample:
        signs += len(_CODE_END.findall(sample))
    return min(1.0, signs / (lines + 1)) if signs >= 3 else 0.0


def _first_block(head: str) -> str:
    cut = head.find("\n\n", 12)
    return head if cut < 0 else head[:cut]


def _last_block(tail: str) -> str:
    cut = tail.rfind("\n\n")
    # A last block of a few characters ("A:") is joined with the one before.
    while cut > 0 and len(tail) - cut < 24:
        cut = tail.rfind("\n\n", 0, cut)
    if cut >= 0:
        return tail[cut + 2 :]
    line = tail.rfind("\n", 0, len(tail) - 24)
    if line >= 0:
        return tail[line + 1 :]
    # One long paragraph: take about the last two sentences.
    for stop in ("。", ". ", "? ", "？"):
        at = tail.rfind(stop, 0, len(tail) - 40)
        if at >= 0:
            return tail[at + len(stop) :]
    return tail
