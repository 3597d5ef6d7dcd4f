"""Tables and patterns of length wishes in nine languages: units, numbers, turns of phrase. Data for `wishes`."""

# ruff: noqa: E501, SIM905  (tables read better in long rows)

from __future__ import annotations

import re

from gateway.request import tells
from gateway.request.words import leaping

NUMBERS = {
    "a": 1, "an": 1, "one": 1, "single": 1, "two": 2, "three": 3, "four": 4, "five": 5, "six": 6, "seven": 7, "eight": 8,
    "nine": 9, "ten": 10, "twelve": 12, "fifteen": 15, "twenty": 20, "thirty": 30, "fifty": 50, "hundred": 100,
    "ein": 1, "einem": 1, "einen": 1, "einer": 1, "zwei": 2, "drei": 3, "vier": 4, "fünf": 5, "zehn": 10,
    "un": 1, "une": 1, "deux": 2, "trois": 3, "quatre": 4, "cinq": 5, "dix": 10, "una": 1, "dos": 2, "tres": 3,
    "cuatro": 4, "cinco": 5, "diez": 10, "due": 2, "tre": 3, "quattro": 4, "cinque": 5, "dieci": 10, "uma": 1, "três": 3,
    "一": 1, "二": 2, "三": 3, "四": 4, "五": 5, "六": 6, "七": 7, "八": 8, "九": 9, "十": 10, "两": 2, "兩": 2, "百": 100,
    "한": 1, "두": 2, "세": 3, "네": 4, "다섯": 5,
}  # fmt: skip
LATIN_UNITS = {
    "word": 1.35, "words": 1.35, "sentence": 26, "sentences": 26, "paragraph": 95, "paragraphs": 95, "page": 600,
    "pages": 600, "line": 13, "lines": 13, "character": 0.24, "characters": 0.24, "letters": 0.5, "tokens": 1, "bullet": 24,
    "bullets": 24, "bulletpoints": 24, "verse": 45, "verses": 45, "stanzas": 45, "stanza": 45, "chapters": 500, "haiku": 20,
    "wort": 2, "worten": 1.7, "wörter": 1.7, "wörtern": 1.7, "satz": 30, "sätze": 30, "sätzen": 30, "absatz": 110,
    "absätze": 110, "absätzen": 110, "seiten": 700, "zeilen": 15, "zeichen": 0.3, "stichpunkten": 25, "stichpunkte": 25,
    "mot": 1.6, "mots": 1.6, "phrase": 30, "phrases": 30, "paragraphe": 110, "paragraphes": 110, "lignes": 15,
    "caractères": 0.28, "palabra": 1.6, "palabras": 1.6, "frase": 30, "frases": 30, "oración": 30, "oraciones": 30,
    "párrafo": 110, "párrafos": 110, "líneas": 15, "caracteres": 0.28, "parola": 1.7, "parole": 1.7, "frasi": 30,
    "paragrafi": 110, "palavra": 1.6, "palavras": 1.6, "parágrafos": 110, "páginas": 700,
}  # fmt: skip
ITEMS = frozenset(
    [
        "items",
        "ideas",
        "tips",
        "examples",
        "ways",
        "reasons",
        "steps",
        "points",
        "facts",
        "names",
        "questions",
        "suggestions",
        "things",
        "options",
        "titles",
        "benefits",
        "recommendations",
        "places",
        "books",
        "movies",
        "topics",
        "differences",
        "advantages",
        "features",
        "strategies",
        "bulletpoints",
        "headlines",
    ]
)
SIZED = ITEMS.union(LATIN_UNITS)
CJK_UNITS = {
    "文字": 0.72, "字": 0.72, "文": 34, "段落": 140, "行": 20, "ページ": 700, "語": 1.6, "単語": 1.6, "ワード": 1.6, "句": 26,
    "句话": 26, "句話": 26, "段": 120, "页": 600, "个字": 0.72, "個字": 0.72, "个词": 1.6, "자": 0.65, "글자": 0.65,
    "문장": 34, "단어": 2, "단락": 140, "문단": 140, "줄": 22, "페이지": 700,
    "個": 28, "つ": 28, "点": 35, "项": 30, "項目": 30, "条": 30, "개": 30, "가지": 30, "案": 28, "件": 30, "選": 28,
}  # fmt: skip
CJK_ITEMS = frozenset({"個", "つ", "点", "项", "項目", "条", "개", "가지", "案", "件", "選"})
# Begins with a character class, so that the regex engine can skip to candidates.
CJK = re.compile(
    r"(?P<number>[\d０-９一二三四五六七八九十两兩百한두세네다](?:(?<=[\d０-９])[\d０-９,，]{0,8}|(?<=다)섯|(?<![\d０-９다])))\s?(?P<range>[~〜～\-–至到]\s?\d{1,6})?\s?(?P<k>千|万)?"
    r"(?P<unit>文字|単語|ワード|ページ|段落|項目|个字|個字|句话|句話|个词|글자|문장|단어|단락|문단|페이지|가지|字|文|行|語|句|段|页|자|줄|個|つ|点|项|条|개|案|件|選)"
    r"(?P<tail>.{0,16})",
    re.DOTALL,
)
COUNTED = re.compile(
    r"[\d０-９一二三四五六七八九十两兩百한두세네다]\s?[千万~〜～\-–至到\d个個]?\s?[\d文単ワペ段項个個句词글단문페가字行語页자줄つ点项条개案件選千万]"
)
ABOUT_INPUT = re.compile(r"以下の|次の|この|上の|下列|以下|这|上述|다음|아래")
LIST_TAIL = re.compile(
    r"^(?:[をほずつ、 ]|くらい|ぐらい|程度|以上|の.{1,10}?を|씩|의? ?.{0,6}[을를] )*"
    r"(?:挙|あげ|列挙|列出|提案|考え|教え|書|出し|出せ|作|紹介|お願い|給|给|写|골라|제시|나열|알려|추천|써|작성)"
)
CJK_SMALL = frozenset(
    {"文", "行", "段", "段落", "句", "句话", "句話", "語", "単語", "문장", "줄", "단락", "문단", "자"}
)
AIM_TAIL = re.compile(
    r"(?:で|に|以内|以下|程度|以上|ほど|くらい|ぐらい|前後|ずつ|内|左右|概括|总结|回答|说明|描述|介绍|로|으로|이내|이하|정도|분량|를? ?써"
    r"|を書|の(?:要約|説明|紹介|文章|感想|詩)|[。、，）)]|$)"
)
AIM_LEADS = ("用", "写", "以", "寫", "in ")
LIST_LEAD = re.compile(r"(?:给|給|列出|列举|写出?|提供|推荐|举出?|说出)(?:我|出)?$")
FIRM_LATIN = (
    (frozenset("yes true ja oui si sí sim sì".split()), leaping("ytjos",
        r"\b(?:yes or no|yes/no|true or false|true/false|ja oder nein|oui ou non|s[ií] o no|sim ou não|sì o no)\b"
    ), 2),
    (frozenset("letter digit character number index buchstabe buchstaben lettre letra".split()), leaping("oslnjeu",
        r"\b(?:(?:one|single) (?:letter|digit|character)|letter only|only the (?:letter|number|index|digit)"
        r"|number only|just the (?:letter|number)|ein(?:en|em)? buchstaben?|une (?:seule )?lettre|una (?:sola )?letra)\b"
    ), 2),
    (frozenset("word words only just nothing explanation explaining nur lediglich wort mot palabra seulement solo únicamente".split()),
     leaping("osjlanweuú",
        r"\b(?:(?:one|single)[ -]word|one or two words|only the (?:label|word|category|name|class|answer|answers?|result|final answer)"
        r"|just the (?:answer|label|name|category|word|class)|label only|answer only|nothing (?:else|but)|no explanation"
        r"|without (?:any )?(?:explanation|explaining)|(?:nur|lediglich) (?:mit )?(?:dem|der|das|die|den|einem) \w{3,12}"
        r"|ein(?:em)? wort|un (?:seul )?mot|una (?:sola )?palabra|seulement (?:le|la|par)|(?:solo|únicamente) (?:con )?(?:el|la|una?))\b"
    ), 4),
)  # fmt: skip
"""(words of which one must occur, pattern, tokens of the answer)"""
FIRM_CJK = (
    (("はい", "いいえ", "yes", "no", "是", "예", "か誤り", "○", "〇"),
     leaping("はいyn是예正○〇",
        r"(?:はい|いいえ|yes|no)[」』\"]?(?:か|または|もしくは|/|／|・|、)[「『\"]?(?:いいえ|はい|no|yes)|是或否|是还是否|是或不是|是否(?:回答|即可)"
        r"|예\s?(?:또는|/|나)\s?아니[오요]|正しいか誤りか|[○〇][かx×✕／/]"
    ), 2),
    (("号", "字", "数値", "アルファベット", "호", "숫자", "기호", "只"),
     leaping("記番数ア英選字序编번숫기只一1",
        r"(?:記号|番号|数字|数値|アルファベット|英字|選択肢の文字|字母|序号|编号|数字|번호|숫자|기호)(?:だけ|のみ|で答|で回答|を1つ|を一つ|即可|만|로만)"
        r"|只(?:需)?(?:回答|输出|返回|給出|给出)(?:一个)?(?:字母|数字|序号|编号|选项)|一文字で|1文字で"
    ), 2),
    (("だけ", "のみ", "言で", "ひとこと", "語で", "いずれか", "説明", "词", "詞", "只", "不要", "无需", "仅", "단어", "만", "설명"),
     leaping("一ひ1１いラカ単名答回結語分選だの説只不无仅한만설",
        r"一言で|ひとことで|一語で|[1１]語で|[1１]単語で|いずれか(?:[1１一]つ|[1１一]語)?[でをの]|(?:ラベル|カテゴリ(?:名)?|単語|名前|答え|回答|結果|語句|分類名|選択肢)(?:だけ|のみ)"
        r"|だけを?(?:答え|回答|出力|返)|のみを?(?:答え|回答|出力|返|記)|説明(?:は|も)?(?:不要|なし|せず)|一个词|一個詞|只(?:回答|输出|返回|给出)|不要解释|无需解释|仅(?:回答|输出|返回)"
        r"|한 ?단어|만 (?:답|출력|대답|말|적)|설명 ?없이"
    ), 5),
)  # fmt: skip
"""(substrings of which one must occur, pattern, tokens of the answer)"""
BRIEF = frozenset(
    "brief briefly concise concisely succinct succinctly tldr kurz knapp brièvement bref brevemente breve short".split()
)
BRIEF_CJK = (
    "簡潔に",
    "手短に",
    "短く",
    "端的に",
    "簡単に",
    "一言",
    "简短",
    "简要",
    "简洁",
    "簡短",
    "간단히",
    "짧게",
    "간략",
)
DETAIL = frozenset(
    "detail detailed depth comprehensive comprehensively thorough thoroughly extensive extensively elaborate ausführlich"
    " detailliert détail détaillé détaillée detalladamente detallado detallada dettagliato detalhado detalhada".split()
)
DETAIL_CJK = (
    "詳し", "詳細", "くわしく", "丁寧に", "できるだけ多く", "长文", "长篇", "详细", "深入", "자세히", "상세", "구체적으로",
)  # fmt: skip
NAMED_NUMBERS = frozenset(name for name in NUMBERS if name.isalpha() and ord(name[0]) < 0x250)
FIRM_CHARS = frozenset("えけみ言語号字値択肢名要明誤只仅否词詞不无即만예단설숫번기○〇")
SMALL = {
    "title": 12, "headline": 14, "question": 22, "name": 8, "slogan": 12, "tagline": 12, "caption": 20, "synonym": 4,
    "synonyms": 16, "antonym": 4, "tweet": 45, "hashtag": 5, "subject": 12, "riddle": 40, "joke": 45, "pun": 25, "quote": 30,
    "sentence": 26, "paragraph": 95, "haiku": 20, "limerick": 45,
}  # fmt: skip
SMALL_ASK = re.compile(
    rf"\b(?:write|create|generate|suggest|give|propose|make|guess|find|what(?:'s| is)|come up with|think of|ask|produce|pick)"
    rf"(?: me| us)? (?:a|an|one|the|some) (?:[a-z-]{{1,16}} ){{0,2}}?(?P<thing>{'|'.join(SMALL)})\b(?! of\b)"
)
ASKS_FOR = re.compile(r"考え|付け|つけ|作|提案|起|写|想|지어|만들")
SMALL_CJK = (
    ("タイトルを", 14),
    ("見出しを", 16),
    ("キャッチコピーを", 16),
    ("题目", 12),
    ("标题", 14),
    ("제목을", 14),
)
MORE = re.compile(r"at least|minimum|more than|over|mindestens|au moins|al menos")
LESS = re.compile(r"at most|under|fewer|less|max|up to|no more|within|höchstens|maximal|moins|máximo")
OF_INPUT = frozenset({"this", "these", "following", "the", "above", "that", "his", "her", "my", "diesen", "ce", "este"})
ARTICLES = frozenset(("a", "an", "un", "une", "una", "uma", "ein", "einen"))
AIMS = frozenset(
    {
        "in",
        "within",
        "about",
        "exactly",
        "under",
        "most",
        "least",
        "maximum",
        "to",
        "than",
        "mit",
        "en",
        "con",
        "using",
        "around",
    }
)
ANY_LABEL = 4
FORMATS = frozenset(("json", "xml", "csv", "yaml", "html", "code", "sql", "markdown"))
"""If one of these is requested, "only" refers to the format and not to a label."""
TELLING: tells.Lists = (
    (tells.UNIT, LATIN_UNITS),
    (tells.UNIT, ITEMS),
    (tells.NUMBER, NAMED_NUMBERS),
    (tells.SMALL, SMALL),
    (tells.DETAIL, DETAIL),
    (tells.BRIEF, BRIEF),
    (tells.FORMAT, FORMATS),
    *((tells.FIRM << at, gate) for at, (gate, _, _) in enumerate(FIRM_LATIN)),
)
"""All words of which one must occur before a wish is searched for."""
TELLING_MARKS: tells.Lists = (
    (tells.DETAIL_CJK, DETAIL_CJK),
    (tells.BRIEF_CJK, BRIEF_CJK),
    (tells.SMALL_CJK, (mark for mark, _ in SMALL_CJK)),
    *((tells.FIRM_CJK << at, gate) for at, (gate, _, _) in enumerate(FIRM_CJK)),
)
"""The same for scripts without spaces."""
ANY_DETAIL = tells.DETAIL | tells.DETAIL_CJK
ANY_BRIEF = tells.BRIEF | tells.BRIEF_CJK
ANY_FIRM = sum(tells.FIRM << at for at in range(len(FIRM_LATIN)))
ANY_FIRM_CJK = sum(tells.FIRM_CJK << at for at in range(len(FIRM_CJK)))
LARGEST = 60_000
COMPOUND = 10
COMPOUNDS = "学書章動目政节的母款の"
"""With a number below `COMPOUND`, a unit before one of these is part of a word (四字の, 三文章)."""
WITHIN = ("以内", "以下", "未満", "이내", "이하")
PUNCTUATION = ".,;:!?()[]{}\"'“”«»¿¡*"
HYPHENS = "-–—/"
"""They separate words."""
BETWEEN = frozenset(
    "simple short complete full brief concise bullet kurzen korte courtes english other more key main".split()
)
ABOUT = frozenset("about around approximately roughly exactly only just circa ca etwa rund environ unos".split())
ONE_WORD = frozenset(("word", "wort", "mot", "palabra"))
