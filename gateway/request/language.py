"""Detects the language of a short text: by script, and for Latin letters by votes of frequent words.

Script counts come from `tokens.count_parts`.
"""

# ruff: noqa: E501  (tables read better in long rows)

from __future__ import annotations

from gateway.request.tokens import Part, count_parts

_STOP_WORDS = {
    "en": "the a an of to and is in it for that this with what how are you be from by on or please was which about no not i my your we they if at as all do does can me one who when why where write give into some",
    "de": "der die das und ist ein eine einen nicht mit auf für von zu den dem wie bitte wird sind was welche ich über im",
    "fr": "le la les des et est une un dans que qui pour pas sur avec ce cette quel quelle vous du en comment moi sont au",
    "es": "el la los las de y es una un en que por para con del qué cuál cómo se está este esta lo al son su",
    "it": "il lo la gli di che è una un per con non del della come cosa questo questa sono nel alla i e mi su scrivi il tra dei perché gli",
    "pt": "o a os as de e é uma um em que por para com não do da qual como este esta são no na você",
    "nl": "de het een en van is dat niet met op voor wat hoe zijn te aan deze dit naar ik",
    "tr": "bir ve bu için ne nasıl ile da de mi olan var çok gibi daha",
    "vi": "là và của các cho một không có này như hãy với được những",
    "id": "yang dan di untuk dengan ini itu adalah dari tidak apa bagaimana dalam pada",
    "pl": "w i na nie się jest do z to jak co że dla czy oraz",
}
_ENGLISH = frozenset(_STOP_WORDS["en"].split())
# Words that are English too are no evidence for another language.
_SETS = {code: frozenset(words.split()) - _ENGLISH for code, words in _STOP_WORDS.items() if code != "en"}
_KNOWN = _ENGLISH.union(*_SETS.values())
_HIRAGANA = frozenset(map(chr, range(0x3041, 0x3097)))
_OTHER_SCRIPTS = (
    ("el", "\u0370", "\u03ff"),
    ("he", "\u0590", "\u05ff"),
    ("ar", "\u0600", "\u06ff"),
    ("hi", "\u0900", "\u097f"),
    ("bn", "\u0980", "\u09ff"),
    ("ta", "\u0b80", "\u0bff"),
    ("th", "\u0e00", "\u0e7f"),
    ("ka", "\u10a0", "\u10ff"),
)


def language_of(text: str, words: set[str], chars: set[str]) -> str:
    """ISO 639-1 code of `text`, given its lower-case Latin `words` and distinct characters; `und` if unclear."""
    if chars:
        # Several distinct hiragana and few Latin words: Japanese, without counting.
        if len(words) <= 4 and len(chars & _HIRAGANA) >= 4:
            return "ja"
        code = _by_script(text, count_parts(text))
        if code:
            return code
    return _by_words(words)


def _by_script(text: str, parts: list[int]) -> str:
    latin = parts[Part.LETTER] + parts[Part.LATIN_EXTRA]
    kana, han, hangul = parts[Part.KANA], parts[Part.HAN], parts[Part.HANGUL]
    cyrillic, other = parts[Part.CYRILLIC], parts[Part.OTHER]
    # A wide character carries about as much as two to four letters.
    if 3 * (kana + han + hangul) > latin:
        if hangul > kana + han:
            return "ko"
        # Chinese punctuation is counted as kana (same UTF-8 lead byte), so a few do not make a text Japanese.
        if 8 * kana > han and any("\u3041" <= char <= "\u30ff" for char in text):
            return "ja"
        return "zh" if han else ""
    if cyrillic > latin:
        return "uk" if any(char in "іїєґ" for char in text) else "ru"
    if 2 * (other + parts[Part.LATIN_EXTRA]) > parts[Part.LETTER]:
        for code, first, last in _OTHER_SCRIPTS:
            if sum(first <= char <= last for char in text[:64]) >= 3:
                return code
    return ""


def _by_words(words: set[str]) -> str:
    if not words:
        return "und"
    known = words & _KNOWN
    english = len(known & _ENGLISH)
    if english * 4 >= len(words) or len(known) <= 2 * english:
        return "en"
    best, votes = "en", english
    for code, stops in _SETS.items():
        hits = len(known & stops)
        if hits > votes:
            best, votes = code, hits
    # Short English instructions ("Fix typos") contain no stop words, and most Latin text is English.
    return best
