"""Eighty example requests in twelve languages, each with the tasks it may be taken for and its side of 64 tokens.

The sentences are made up for this table. `S` is short (at most 64 tokens expected at the median), `L` is long.
"""

from __future__ import annotations

import json

import pytest

from gateway.estimate.rules import estimate_rules
from gateway.request.features import extract
from gateway.request.parse import parse_body
from gateway.types import Api, Task

C, M, E, Q = Task.CLASSIFICATION, Task.MULTIPLE_CHOICE, Task.EXTRACTION, Task.SHORT_QA
X, K, H, S_ = Task.MATH, Task.CODE, Task.CHAT, Task.SUMMARIZATION
W, T, L_, J, R = Task.REWRITING, Task.TRANSLATION, Task.LONG_FORM, Task.STRUCTURED_JSON, Task.REASONING
ANY = frozenset(Task)

ROWS: list[tuple[str, str, set[Task] | frozenset[Task], str]] = [
    # English
    ("en", "Classify the sentiment of this review as positive or negative: 'The kettle leaks.'", {C}, "S"),
    ("en", "Is the following message spam? Answer yes or no.\n\nYou have won a garden gnome!", {C, Q}, "S"),
    ("en", "Which of the following is a mammal?\n(A) trout\n(B) heron\n(C) otter\n(D) newt", {M}, "S"),
    ("en", "Reply with only the letter of the correct answer.\nA) 4\nB) 5\nWhat is 2+2?", ANY, "S"),
    ("en", "Extract all company names from this sentence: Norvik Ltd bought Haldane Mills in May.", {E}, "S"),
    ("en", "Who designed the lighthouse at Fastnet Rock?", {Q}, "S"),
    ("en", "What year did the first tram run in Lisbon?", {Q}, "S"),
    ("en", "Write a 500-word essay on why tides matter to coastal towns.", {L_}, "L"),
    ("en", "Write a story about a lighthouse keeper who befriends a storm.", {L_}, "L"),
    ("en", "Explain how a sourdough starter works and why it needs feeding.", {H}, "L"),
    ("en", "Compare renting and buying a flat in a big city. Discuss the pros and cons.", {H}, "L"),
    ("en", "Write a Python function that merges two sorted linked lists.", {K}, "L"),
    ("en", "Implement an LRU cache in TypeScript with tests.", {K}, "L"),
    ("en", "Give me step-by-step instructions for a blog post about composting.", ANY, "L"),
    ("en", "Translate to French: Good morning, the train is late.", {T}, "S"),
    ("en", "Answer in one word: what colour is a ripe banana?", ANY, "S"),
    ("en", "Suggest ten names for a bakery and tell me why each fits.", {H}, "L"),
    ("en", "Describe a winter market in exactly one sentence.", ANY, "S"),
    ("en", "Summarize the plot of a heist film in 3 sentences.", {S_}, "L"),
    ("en", "Label the intent of this utterance. Only the label: 'turn the lamp off'", {C}, "S"),
    ("en", "Draft a cover letter for a job as a beekeeper.", {L_}, "L"),
    ("en", "Fix the grammar: He go to school every days.", {W}, "S"),
    ("en", "Rephrase in a more formal tone: gimme the report asap", {W}, "S"),
    ("en", "Prove step by step that the sum of two odd numbers is even.", {R, X}, "L"),
    ("en", "True or false: herons are reptiles.", {C, Q}, "S"),
    ("en", "Plan a detailed seven-day itinerary for Iceland.", {L_, H}, "L"),
    ("en", "A long story of a classical pianist would be nice.", {L_}, "L"),
    ("en", "Brainstorm ideas for a garden with little sun.", {H}, "L"),
    ("en", "Write a haiku about rust. No explanation.", ANY, "S"),
    ("en", "Write a comprehensive guide to repairing bicycles.", {L_}, "L"),
    # Japanese
    ("ja", "次のレビューの感情をポジティブかネガティブに分類してください。\n\nこの傘はすぐ壊れました。", {C}, "S"),
    ("ja", "次の文はスパムですか。「はい」か「いいえ」で答えてください。\n無料で時計が当たります。", ANY, "S"),
    ("ja", "正しい選択肢の番号のみを答えてください。\n1. 犬\n2. 机\n3. 雲\n空に浮かぶものはどれですか。", {M}, "S"),
    ("ja", "次の文から地名を抽出してください。\n私は先週、松本から長野まで歩きました。", {E}, "S"),
    ("ja", "一言で答えてください。富士山の高さは？", ANY, "S"),
    ("ja", "潮の満ち引きについて2000字程度のレポートを書いてください。", {L_}, "L"),
    ("ja", "灯台守と嵐の友情を描いた物語を書いてください。", {L_}, "L"),
    ("ja", "光合成の仕組みを中学生にもわかるように詳しく説明してください。", {H}, "L"),
    ("ja", "賃貸と持ち家の違いを比較し、それぞれの利点を述べてください。", {H}, "L"),
    ("ja", "二つの整列済みリストを併合する関数をPythonで実装してください。", {K}, "L"),
    ("ja", "次の文を英語に翻訳してください。\n電車が遅れています。", {T}, "S"),
    ("ja", "次の文章を丁寧語に書き換えてください。\n明日行くから待ってて。", {W}, "S"),
    ("ja", "次の文章を3行で要約してください。\n" + "山の朝は早い。人々は薪を割り、湯を沸かす。" * 6, {S_}, "S"),
    ("ja", "パン屋の名前のアイデアを10個挙げて、理由も説明してください。", {H, R}, "L"),
    ("ja", "リンゴが3個、ミカンが5個あります。合計は何個ですか。数字だけ答えてください。", ANY, "S"),
    ("ja", "結果をJSONで返して。名前: 田中、年齢: 34", {J}, "S"),
    ("ja", "30字以内で自己紹介を書いてください。", ANY, "S"),
    ("ja", "上司への謝罪メールを書いてください。", {L_, H}, "L"),
    # Chinese
    ("zh", "请判断下面评论的情感是正面还是负面，只回答一个词：这个水壶漏水。", {C}, "S"),
    ("zh", "请写一篇关于潮汐的800字作文。", {L_}, "L"),
    ("zh", "请详细介绍一下如何在家种植番茄。", {H}, "L"),
    ("zh", "把下面的句子翻译成英文：火车晚点了。", {T}, "S"),
    ("zh", "请从下面的句子中提取公司名称：去年，海风公司收购了石桥纺织。", {E}, "S"),
    ("zh", "用Python实现一个最近最少使用缓存的代码。", {K}, "L"),
    ("zh", "下列哪一种是哺乳动物？选项：A. 鳟鱼 B. 水獭。只回答字母。", {M, C}, "S"),
    ("zh", "用一句话概括这部电影。", {S_}, "S"),
    # Korean
    ("ko", "다음 리뷰의 감정을 긍정 또는 부정으로 분류하세요. 한 단어로 답하세요.\n주전자가 샌다.", {C}, "S"),
    ("ko", "등대지기에 관한 이야기를 써 주세요.", {L_}, "L"),
    ("ko", "광합성이 어떻게 이루어지는지 자세히 설명해 주세요.", {H}, "L"),
    ("ko", "다음 문장을 영어로 번역하세요: 기차가 늦습니다.", {T}, "S"),
    ("ko", "조수에 대해 500자 분량의 글을 작성해 주세요.", {L_}, "L"),
    # German
    ("de", "Klassifiziere die Stimmung der Bewertung als positiv oder negativ: Der Kessel ist undicht.", {C}, "S"),
    ("de", "Schreibe einen Aufsatz von 600 Wörtern über Ebbe und Flut.", {L_}, "L"),
    ("de", "Erkläre ausführlich, wie ein Sauerteig entsteht und warum er gefüttert wird.", {H}, "L"),
    ("de", "Antworte nur mit ja oder nein: Ist ein Otter ein Säugetier?", ANY, "S"),
    ("de", "Übersetze ins Englische: Der Zug hat Verspätung.", {T}, "S"),
    # French
    ("fr", "Rédige une dissertation sur les marées et leur rôle pour les villes de la côte.", {L_}, "L"),
    ("fr", "Explique pourquoi le levain doit être nourri et comment il fonctionne.", {H}, "L"),
    ("fr", "Réponds en un mot : de quelle couleur est une banane mûre ?", ANY, "S"),
    ("fr", "Traduis en anglais : le train est en retard.", {T}, "S"),
    ("fr", "Classe cet avis comme positif ou négatif : la bouilloire fuit.", {C}, "S"),
    # Spanish
    ("es", "Escribe un cuento sobre un farero que se hace amigo de una tormenta.", {L_}, "L"),
    ("es", "Explica cómo funciona la masa madre y por qué hay que alimentarla.", {H}, "L"),
    ("es", "Responde sí o no: ¿la nutria es un mamífero?", ANY, "S"),
    ("es", "Traduce al inglés: el tren llega tarde.", {T}, "S"),
    ("es", "Resume el texto en una frase: el mercado abrió y la gente compró pan.", {S_}, "S"),
    # Italian, Portuguese, Russian
    ("it", "Scrivi un racconto su un guardiano del faro che incontra una tempesta.", {L_}, "L"),
    ("pt", "Explique como funciona o fermento natural e por que ele precisa de cuidados.", {H}, "L"),
    ("ru", "Напиши рассказ о смотрителе маяка и буре.", {L_}, "L"),
    ("ru", "Переведи на английский: поезд опаздывает.", {T}, "S"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("language", "text", "tasks", "side"), ROWS, ids=[f"{i}-{row[0]}" for i, row in enumerate(ROWS)]
)
def test_takes_an_example_for_what_it_is(
    language: str, text: str, tasks: set[Task] | frozenset[Task], side: str
) -> None:
    """ROUTE-01, ROUTE-03, ROUTE-04: task, language and side of 64 tokens come from the ask, whatever its length."""
    raw = json.dumps({"model": "m", "messages": [{"role": "user", "content": text}]}).encode()

    features = extract(parse_body(raw), Api.CHAT)
    estimate = estimate_rules(features)

    found = f"{estimate.task} {estimate.p50:.0f} {features.task_scores[:3]} wish {features.wish}"
    assert features.language == language, found
    assert estimate.task in tasks, found
    assert ("S" if estimate.p50 <= 64 else "L") == side, found
