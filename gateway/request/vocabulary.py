"""Words that are evidence for a task, by language. Data only; `evidence` matches them.

Latin words match as whole words ("class" does not match "classical"); words of scripts without spaces match as
substrings. The number is the weight: 4 decides, 1 hints.
"""

# ruff: noqa: E501  (tables read better in long rows)

from __future__ import annotations

import re

from gateway.types import Task

_C, _M, _E, _Q = Task.CLASSIFICATION, Task.MULTIPLE_CHOICE, Task.EXTRACTION, Task.SHORT_QA
_X, _K, _H, _S = Task.MATH, Task.CODE, Task.CHAT, Task.SUMMARIZATION
_W, _T, _L, _J, _R = Task.REWRITING, Task.TRANSLATION, Task.LONG_FORM, Task.STRUCTURED_JSON, Task.REASONING

Table = dict[str, tuple[Task, float]]


def _table(*rows: tuple[Task, str]) -> Table:
    """Parses rows of `word:weight`, with `_` for a space, into one table."""
    table: Table = {}
    for task, words in rows:
        for entry in words.split():
            word, _, weight = entry.rpartition(":")
            table[word.replace("_", " ")] = (task, float(weight))
    return table


WORDS: dict[str, Table] = {
    "en": _table(
        (_C, "classify:4 categorize:4 categorise:4 classification:3 classifier:3 sentiment:2 label:1.5 labels:1.5 entailment:3"
             " contradiction:2 spam:1.5 toxic:1.5 intent:1.5 topic:1 category:2 categories:2 similarity:1"),
        (_M, "choices:.5 options:.7 option:.7 quiz:1"),
        (_E, "extract:4 extraction:2 entities:2.5 entity:2 passage:1 context:.7 paragraph:.5 excerpt:.5"),
        (_X, "calculate:2.5 compute:2 solve:2 equation:2 probability:1.5 integral:2 derivative:2 sum:1 percent:1 fraction:1"
             " triangle:1 average:1 total:.7 arithmetic:2"),
        (_K, "function:2 python:2.5 javascript:2.5 typescript:2.5 java:2 sql:2.5 code:2 script:1.2 implement:2 refactor:3"
             " regex:2.5 algorithm:1.5 compile:1.5 html:2 css:2 rust:1.5 bash:2 api:1 debug:2.5 bug:1.5 kotlin:2 golang:2.5"
             " c++:2.5 react:1.2 php:2 ruby:1.5 program:1.5 unittest:2 dockerfile:2 query:1 array:1 django:2"),
        (_S, "summarize:4 summarise:4 summary:3 tldr:4 recap:2 condense:2.5 takeaways:2 gist:1.5"),
        (_W, "rewrite:4 paraphrase:3 rephrase:4 proofread:4 reword:4 grammar:2 polish:2 edit:2 simplify:1.5 formal:1"),
        (_T, "translate:5 translation:2.5"),
        (_L, "essay:3.5 story:2.5 blog:3 novel:2 speech:2 poem:1.5 report:1.5 article:1 chapter:2 letter:1 email:1.5"
             " guide:1.5 tutorial:2 proposal:2 screenplay:2.5 itinerary:2.5 comprehensive:1.5 plan:1 lyrics:1.5"),
        (_H, "explain:2.5 describe:2 suggest:2 ideas:1.5 brainstorm:2.5 tips:2 discuss:2.5 compare:1.8 recommend:2 advice:2"
             " why:1.2 how:.8 tell:1 pros:2 cons:1.5 advantages:1.5 should:.6 differences:1.5 difference:1.2 examples:1"),
        (_J, "json:2.5 yaml:2 xml:1.5 schema:1"),
        (_R, "reason:1 reasoning:1.5 prove:2.5 proof:2 puzzle:1.5 deduce:2"),
        (_Q, "who:1.2 when:.9 where:.9 which:.7 name:.6 capital:1"),
    ),
    "de": _table(
        (_C, "klassifiziere:4 klassifizieren:4 ordne:2.5 kategorie:2 stimmung:1.5 einordnen:3"),
        (_E, "extrahiere:4 extrahieren:4 entnimm:2"), (_S, "zusammenfassung:3.5 fasse:3 zusammen:1.5 zusammenfassen:4"),
        (_W, "umformulieren:4 formuliere:3 korrigiere:4 verbessere:2 überarbeite:3 schreibe_um:4"),
        (_T, "übersetze:5 übersetzen:4 übersetzung:2.5"),
        (_L, "aufsatz:3.5 geschichte:2 artikel:1.5 blogbeitrag:3 erzählung:3 bericht:2 brief:1 ausführlich:1.5 rede:1.5"),
        (_K, "funktion:2 code:2 programm:1.5 python:2.5 sql:2.5 skript:1.5"),
        (_X, "berechne:3 löse:2 gleichung:2 wahrscheinlichkeit:1.5 rechne:2"),
        (_H, "erkläre:2.5 erklären:2 beschreibe:2 warum:1.3 wie:.6 vergleiche:2 empfehle:2 tipps:2 ideen:1.5 unterschied:1.2"),
        (_J, "json:2.5"), (_Q, "wer:1.2 wann:1.2 wo:1 welches:.7"),
    ),
    "fr": _table(
        (_C, "classe:2.5 classez:3.5 classifie:4 classifiez:4 sentiment:2 catégorie:2"),
        (_E, "extrais:4 extrayez:4 extraire:3.5 relève:2"), (_S, "résume:4 résumez:4 résumer:3.5 résumé:3 synthèse:2"),
        (_W, "reformule:4 reformulez:4 réécris:4 réécrivez:4 corrige:4 corrigez:4 paraphrase:3"),
        (_T, "traduis:5 traduisez:5 traduire:4 traduction:2.5"),
        (_L, "dissertation:3.5 essai:3 histoire:2 article:1.5 conte:2.5 rédige:2.5 rédigez:2.5 rapport:1.5 discours:2 nouvelle:1"),
        (_K, "fonction:2 code:2 programme:1.5 python:2.5 sql:2.5 script:1.2"), (_X, "calcule:3 calculez:3 résous:2.5 équation:2"),
        (_H, "explique:2.5 expliquez:2.5 décris:2 décrivez:2 pourquoi:1.3 comment:.8 compare:2 comparez:2 conseils:2 idées:1.5"),
        (_J, "json:2.5"), (_Q, "qui:.5 quand:1.2 où:.8"),
    ),
    "es": _table(
        (_C, "clasifica:4 clasifique:4 sentimiento:2 categoría:2"), (_E, "extrae:4 extraer:3.5 extraiga:4"),
        (_S, "resume:4 resumir:3.5 resumen:3 resuma:4"), (_W, "reescribe:4 reformula:4 corrige:4 parafrasea:4 mejora:2"),
        (_T, "traduce:5 traduzca:5 traducir:4 traducción:2.5"),
        (_L, "ensayo:3.5 historia:2 cuento:3 artículo:1.5 redacta:2.5 informe:2 discurso:2 relato:3"),
        (_K, "función:2 código:2 programa:1.5 python:2.5 sql:2.5"), (_X, "calcula:3 resuelve:2.5 ecuación:2"),
        (_H, "explica:2.5 explique:2.5 describe:2 compara:2 consejos:2 ideas:1.5 diferencia:1.2 diferencias:1.5 cómo:.8"),
        (_J, "json:2.5"), (_Q, "quién:1.2 cuándo:1.2 dónde:1"),
    ),
    "it": _table(
        (_C, "classifica:4 categoria:2"), (_E, "estrai:4"), (_S, "riassumi:4 riassunto:3"), (_W, "riscrivi:4 riformula:4 correggi:4"),
        (_T, "traduci:5 traduzione:2.5"), (_L, "saggio:3 racconto:3 storia:2 articolo:1.5"), (_K, "funzione:2 codice:2 python:2.5"),
        (_X, "calcola:3 risolvi:2.5"), (_H, "spiega:2.5 descrivi:2 perché:1.2 consigli:2"), (_J, "json:2.5"),
    ),
    "pt": _table(
        (_C, "classifique:4 classifica:4 categoria:2"), (_E, "extraia:4 extrair:3.5"), (_S, "resuma:4 resumo:3 resumir:3.5"),
        (_W, "reescreva:4 reformule:4 corrija:4"), (_T, "traduza:5 tradução:2.5"), (_L, "redação:3.5 história:2 conto:2.5 artigo:1.5 ensaio:3"),
        (_K, "função:2 código:2 python:2.5"), (_X, "calcule:3 resolva:2.5"), (_H, "explique:2.5 descreva:2 dicas:2 compare:2"), (_J, "json:2.5"),
    ),
}  # fmt: skip

_PHRASES = _table(
    (_C, "true_or_false:3 yes_or_no:3 positive_or_negative:4 positive,_negative:4 which_category:3 one_of_the_following:2 pick_one:2"
         " is_it_about:2 duplicates_or_not:2 entail:2"),
    (_M, "which_of_the_following:3 choose_the:2 the_correct_answer:2 select_the:2 correct_option:3 options::2.5"),
    (_E, "named_entities:3 according_to_the:1.5 based_on_the_passage:2 in_the_text:1 from_the_text:1.5 from_the_following:1"),
    (_S, "main_points:2 key_points:2 sum_up:3"), (_W, "correct_the_:2 fix_the_grammar:3 more_formal:2 in_your_own_words:2"),
    (_L, "write_an_essay:3 write_a_story:3 write_a_blog:2 in_detail:1 step-by-step_guide:2 cover_letter:3 write_a_letter:3"),
    (_H, "how_do_i:2 how_can_i:2 what_are_the:1.2 what_is_the_difference:2 give_me_some:1.5 help_me:1.5 tell_me_about:2 what_do_you_think:2"),
    (_X, "how_many:1.8 how_much:1.5 what_is_the_value:2"), (_Q, "what_year:3 how_old:2 how_tall:2 what_is_the_capital:3 what_is_the_name:2 who_is:1.5 who_was:1.5 who_wrote:2"),
    (_J, "in_json:2 as_json:2 json_object:2 valid_json:2 json_format:2 json_only:3"),
    (_K, "in_python:2 in_javascript:2 c++:2 c#:2 write_a_function:3 write_a_program:3 regular_expression:2.5 unit_test:2"),
)  # fmt: skip

_JA = _table(
    (_C, "分類:4 判定:3 感情:1 カテゴリ:2 ラベル:2 含意:3 どちらか:2 ポジティブ:2.5 ネガティブ:2.5 類似度:2.5 ジャンル:1"),
    (_M, "選択肢:3.5 選んで:2.5 選びなさい:3 選べ:2 正しいもの:2.5 記号:2 番号:1.5 次のうち:2"),
    (_E, "抽出:4 抜き出:4 固有表現:3 参考：:1.5 文章中:1.5 本文:1 段落:.7"), (_S, "要約:4.5 まとめて:2 要点:2 三行で:2"),
    (_W, "書き換え:4 言い換え:4 書き直:4 添削:4 校正:4 直して:2.5 敬語:2.5 丁寧語:2.5 リライト:4 推敲:3.5"),
    (_T, "翻訳:5 英訳:5 和訳:5 訳して:5 訳しなさい:5 英語に:3 日本語に:2"),
    (_L, "物語:3 小説:3.5 エッセイ:3.5 作文:3 記事:1.5 ブログ:3 レポート:2.5 論じ:3 手紙:2 メール:1.2 スピーチ:3 脚本:3 企画:2 詩を:2 台本:3 童話:3 提案書:3"),
    (_K, "コード:2.5 プログラム:2.5 関数:2 実装:2.5 正規表現:3 スクリプト:2 アルゴリズム:1.5 バグ:2 クラス:1 クエリ:2 python:2.5 sql:2.5 javascript:2.5"),
    (_X, "計算:2.5 求めよ:3 求めなさい:3 求めて:2 いくら:1 何個:1.5 何円:2 方程式:2.5 確率:2 何人:1 割合:1"),
    (_H, "説明し:2.5 教えて:1.8 述べ:2.5 解説:2.5 アイデア:2.5 提案し:2.5 考えて:2 違い:2 比較:2 アドバイス:2.5 方法:1.5 理由:1.2 なぜ:1.5 どのように:2 どうすれば:2 おすすめ:2 挙げて:2"),
    (_Q, "は誰:1.5 はいつ:1.5 はどこ:1.5 何年:1 何と:1 首都:1 は何:.6 どんな:.5"), (_J, "json:2.5"), (_R, "推論:2 論理的:1 証明:2.5"),
)  # fmt: skip

_ZH = _table(
    (_C, "分类:4 分類:4 判断:2.5 情感:2 类别:2 標籤:2 标签:2 正面还是负面:4"), (_M, "选项:3 選項:3 选择:1.5 下列哪:3 以下哪:2.5"),
    (_E, "提取:4 抽取:4 实体:2.5 根据上文:1.5 根据文章:1.5"), (_S, "总结:4 總結:4 摘要:4 概括:4 归纳:3"),
    (_W, "改写:4 改寫:4 润色:4 重写:3.5 改正:3 修改:2"), (_T, "翻译:5 翻譯:5 译成:4.5 譯成:4.5"),
    (_L, "作文:3.5 写一篇:3 寫一篇:3 故事:2.5 小说:3 小說:3 报告:2 演讲:2.5 散文:3 文案:2.5 剧本:3 论文:2.5"),
    (_K, "代码:2.5 函数:2.5 程式:2 程序:1.5 实现:1.5 编程:2.5 脚本:2 python:2.5 sql:2.5"), (_X, "计算:2.5 計算:2.5 求解:2.5 方程:2 多少:1 概率:2"),
    (_H, "解释:2.5 解釋:2.5 介绍:2.5 介紹:2.5 如何:1.8 怎么:1.8 為什麼:1.5 为什么:1.5 建议:2 比较:2 区别:2 说明:2 分析:2"),
    (_Q, "是谁:1.8 哪一年:2 什么时候:1.5 在哪:1.5 首都:1"), (_J, "json:2.5"), (_R, "推理:2 证明:2.5"),
)  # fmt: skip

_KO = _table(
    (_C, "분류:4 감정:2 긍정:2.5 부정:1.5 판단:2 카테고리:2"), (_M, "고르:2.5 골라:2.5 선택지:3 보기:1.5 다음_중:2.5"), (_E, "추출:4 찾아:1.5 개체명:3"),
    (_S, "요약:4.5 정리해:2"), (_W, "다시_써:3.5 고쳐:3.5 바꿔:2.5 교정:4 다듬:3.5"), (_T, "번역:5 영어로:3 한국어로:2.5"),
    (_L, "에세이:3.5 이야기:2.5 소설:3.5 글을_써:3 글을_작성:3 보고서:2.5 기사:1.5 연설:2.5 블로그:3"),
    (_K, "코드:2.5 함수:2.5 구현:2.5 프로그램:2 파이썬:2.5 python:2.5 sql:2.5"), (_X, "계산:2.5 구하:2 방정식:2.5 확률:2 몇_개:1.5"),
    (_H, "설명:2.5 알려:1.5 비교:2 추천:2 왜:1.2 어떻게:1.8 방법:1.5 차이:2 아이디어:2 조언:2"), (_Q, "누구:1.8 언제:1.5 어디:1.5 몇_년:1.8 수도:1"), (_J, "json:2.5"),
)  # fmt: skip

_RU = _table(
    (_C, "классифиц:4 тональност:2.5 категори:2"), (_E, "извлек:4"), (_S, "кратко_изложи:4 резюмир:4 перескаж:3"), (_W, "перефразир:4 перепиши:4 исправь:4"),
    (_T, "перевед:5 перевод:2"), (_L, "эссе:3.5 рассказ:2.5 сочинени:3.5 статью:2 доклад:2"), (_K, "функци:2 код:1.5 python:2.5 программ:1.5"),
    (_X, "вычисли:3 посчитай:3 реши:2"), (_H, "объясни:2.5 опиши:2 почему:1.3 как_:.8 сравни:2 посовет:2"), (_J, "json:2.5"), (_Q, "кто:1 когда:1"),
)  # fmt: skip

Anchored = dict[str, tuple[tuple[str, Task, float], ...]]


def _anchored(table: Table) -> Anchored:
    """Indexes phrases by a word that must occur in them, so that few phrases are searched."""
    found: dict[str, list[tuple[str, Task, float]]] = {}
    for phrase, (task, weight) in table.items():
        found.setdefault(_longest(phrase), []).append((phrase, task, weight))
    return {key: tuple(phrases) for key, phrases in found.items()}


def _longest(phrase: str) -> str:
    words: list[str] = re.findall(r"[a-z+#]+", phrase)
    return max(words, key=len)


PHRASES: Anchored = _anchored(_PHRASES)
"""English phrases by their longest word."""
MARKS: dict[str, Table] = {"ja": _JA, "zh": _ZH, "ko": _KO, "ru": _RU, "uk": _RU}
"""Substrings of other scripts, by language."""
