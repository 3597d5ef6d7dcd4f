"""Lexicon for the length estimate: words in groups that mean the same in every language. One bit per group.

Latin words match as whole words, so that `class` does not match "classical"; words of scripts without spaces match as
substrings. What is learned about "explain" in English also holds for 「説明」 and "erkläre".
"""

from __future__ import annotations

from typing import NamedTuple

_LATIN: dict[str, str] = {
    "create": (
        "write create generate compose craft draft invent imagine brainstorm schreibe schreib"
        " verfasse écris rédige escribe redacta scrivi escreva"
    ),
    "build": "implement build develop design program make entwickle développe desarrolla",
    "explain": (
        "explain describe discuss elaborate illustrate outline teach understand tutorial erkläre"
        " beschreibe explique décris explica describe spiega descreva"
    ),
    "analyze": (
        "analyze analyse compare contrast evaluate assess critique review argue debate examine"
        " investigate justify vergleiche bewerte compara analiza confronta"
    ),
    "list": (
        "list enumerate suggest recommend propose ideas tips ways examples provide steps nenne liste"
        " schlage enumera sugiere"
    ),
    "summarize": (
        "summarize summarise summary tldr abstract condense zusammenfassen fasse résume resume riassumi resuma"
    ),
    "translate": ("translate translation übersetze übersetzen traduis traduisez traduce traduzca traduci traduza"),
    "rewrite": (
        "rewrite paraphrase rephrase edit correct proofread fix convert change replace reorder"
        " rearrange transform improve simplify korrigiere corrige réécris reformule corregir"
        " reescribe"
    ),
    "classify": (
        "classify classification categorize category categories label sentiment topic determine"
        " identify decide detect judge true false correct entailment contradiction neutral"
        " klassifiziere classe classez clasifica classifica"
    ),
    "choose": (
        "choose select pick option options choice choices alternatives candidates wähle choisis elige scegli escolha"
    ),
    "extract": ("extract find retrieve entities mentioned highlight locate extrahiere extrais extrae estrai extraia"),
    "answer": "answer answering respond question antworte réponds responde rispondi responda",
    "calculate": (
        "calculate compute solve sum probability equation percent integral derivative prove proof"
        " berechne calcule calcula resuelve calcola"
    ),
    "code": (
        "code function program python javascript java sql script html css class method algorithm"
        " array api regex bash c++ c# rust query loop typescript kotlin golang"
    ),
    "text": (
        "essay story article email blog letter poem report speech song lyrics novel post dialogue"
        " conversation paragraphs plan guide proposal recipe itinerary lesson advertisement plot"
        " aufsatz geschichte histoire historia ensayo"
    ),
    "short": (
        "only just single brief briefly concise concisely short shortly exactly simply nur kurz"
        " seulement bref solo breve"
    ),
    "long": (
        "detailed detail details thorough comprehensive complete full long extensive deep depth"
        " elaborate ausführlich détaillé detallado dettagliato"
    ),
    "reason": (
        "reasoning reason reasons why step steps explanation rationale because logically begründe raisons razones"
    ),
    "binary": "yes no true false ja nein oui non sí não",
    "word": "word words phrase term name noun number digit letter index integer wort mot palabra parola",
    "sentence": "sentence sentences satz phrase frase oración",
    "json": "json csv xml yaml",
    "table": "table columns bullet markdown tabelle tableau tabla",
    "context": (
        "passage context paragraph article text document below following background above given based according"
    ),
    "title": "title headline caption subject keyword keywords names titel titre título",
    "who": "who when where which whose whom wer wann wo qui quand où quién cuándo dónde cuál chi",
    "what": "what was que qué cosa",
    "how": "how wie comment cómo come",
    "why": "why warum pourquoi perché",
    "is": "is are were does do did has have can could should would will ist sind est sont es son",
    "self": "me my i you your ich mein je mon yo mi",
    "opinion": "think opinion feel advice best should important",
    "role": "assistant helpful bot persona act pretend",
}
_SCRIPT: dict[str, str] = {
    "create": "書い 作成 創作 生成 考えて 執筆 作って 作り 编写 写一 创作 撰写 써줘 작성 만들어",
    "build": "実装 開発 設計 实现 开发 구현",
    "explain": "説明 述べ 解説 教えて 論じ ついて 紹介 描写 解释 介绍 说明 설명 소개",
    "analyze": "比較 分析 評価 考察 検討 論証 議論 違い 比较 评价 비교 분석",
    "list": "挙げ 提案 リスト 列挙 例を 方法 アイデア アドバイス おすすめ 列出 建议 列举 추천 나열",
    "summarize": "要約 まとめ 总结 摘要 概括 요약",
    "translate": "翻訳 和訳 英訳 日本語に 英語に 翻译 译成 번역",
    "rewrite": "書き換え 言い換え 修正 直して 変換 校正 リライト 敬語 改写 润色 고쳐 바꿔",
    "classify": "分類 判定 感情 含意 矛盾 関係 ラベル 分类 类别 判断 類似度 採点 スコア 点数 분류 판단",
    "choose": "選択 選び 選ん いずれか どちら 次のうち 番号 选择 选出 선택 고르",
    "extract": "抽出 抜き出 固有 抜粋 提取 找出 추출",
    "answer": "回答 答え 質問 问题 답",
    "calculate": "計算 求め 何個 いくつ 何円 何人 確率 方程式 解い 计算 求解 계산",
    "code": "コード 関数 プログラム スクリプト 代码 函数 程序 코드 함수",
    "text": (
        "物語 小説 エッセイ 記事 メール 手紙 詩 レポート ストーリー 作文 スピーチ 台本 脚本 ブログ"
        " 故事 文章 小说 소설 이야기"
    ),
    "short": ("だけ のみ 簡潔 短く 一言 一語 1語 一文 1文 以外は 不要 付けない 出力しない ひとこと 只 仅 简洁 만"),
    "long": "詳し 詳細 具体的 丁寧 详细 深入 자세히",
    "reason": "理由 根拠 なぜ 過程 ステップ 思考 どうして 順を追 为什么 步骤 이유",
    "binary": "はい いいえ 正しい 真偽 可能ですか ますか ですか 是否 아니",
    "word": "単語 語句 名詞 番号 記号 数値 数字 整数 インデックス 单词 단어",
    "sentence": "文で 文を 一文 1文 行で 句话 문장",
    "json": "ＪＳＯＮ",
    "table": "表形式 表に 箇条書き マークダウン 表で 表格 표로",
    "context": "以下 次の 文章 参考 コンテキスト 文脈 上の 本文 下記 根据 다음",
    "title": "タイトル 見出し 名前 題名 キャッチ 标题 제목",
    "who": "誰 どこ いつ 何年 何と 何を どの どれ だれ 何という 何か は何 谁 哪 누구 어디",
    "what": "何 とは 什么 무엇",
    "how": "どのよう どうやって どう 怎么 如何 어떻게",
    "why": "なぜ どうして 为什么 왜",
    "is": "か？ か。 ですか 吗 까?",
    "self": "私 あなた 僕 我 你 나는",
    "opinion": "思い 意見 べき 感じ 觉得 생각",
    "role": "アシスタント として 助手 도우미",
}
_PHRASES: dict[str, str] = {
    "steps": "step by step|let s think|show your|ステップ|順を追|途中式|一步一步",
    "how many": "how many|how much|いくつ|何個|何人|何円|多少|몇",
    "yes or no": "yes or no|true or false|or not|はい／いいえ|はいかいいえ|是或否",
    "one word": "one word|single word|一言|1語|一語|一个词",
    "can you": "can you|could you|してもらえ|していただけ",
    "how to": "how to|how can|how do|方法|やり方|如何",
    "what is": "what is|とは|是什么",
    "what are": "what are",
    "which of": "which of|次のうち",
    "each": "for each|as many|それぞれ|すべて|每个",
    "at most": "no more than|at most|以内|不超过",
    "following": "the following|以下の|次の|以下",
    "a sentence": "a sentence|一文|1文|一句话",
    "if there is no": "if there is no",
    "write a": "write a|write an|create a|を書い|写一",
    "in detail": "in detail|詳しく|详细",
    "would": "what would|what do you think|どう思",
}

GROUPS: tuple[str, ...] = tuple(_LATIN)
BIT: dict[str, int] = {name: 1 << i for i, name in enumerate(GROUPS)}
PHRASES: tuple[str, ...] = tuple(_PHRASES)
PHRASE_BIT: dict[str, int] = {name: 1 << i for i, name in enumerate(PHRASES)}


class Groups(NamedTuple):
    """Lexicon bits of a request: bits of `GROUPS` for each window of its text, and of `PHRASES` for the whole."""

    system: int = 0
    first: int = 0
    """First line of the last user turn."""
    ask: int = 0
    """Its first and last characters."""
    last: int = 0
    """Its last line."""
    phrases: int = 0


def _words() -> dict[str, int]:
    """Latin word -> bits of its groups."""
    table: dict[str, int] = {}
    for name, words in _LATIN.items():
        for word in words.split():
            table[word] = table.get(word, 0) | BIT[name]
    return table


def _latin_phrases() -> dict[str, tuple[tuple[str, int], ...]]:
    """Longest word of a phrase, taken as its rarest -> (phrase between spaces, its bit)."""
    found: dict[str, tuple[tuple[str, int], ...]] = {}
    for name, text in _PHRASES.items():
        for phrase in filter(str.isascii, text.split("|")):
            longest = max(phrase.split(), key=len)
            found[longest] = (*found.get(longest, ()), (f" {phrase} ", PHRASE_BIT[name]))
    return found


def _marks() -> dict[str, int]:
    """Substring in a script without spaces -> bits of its groups and, above these, of its phrases."""
    table: dict[str, int] = {}
    for name, parts in _SCRIPT.items():
        for part in parts.lower().split():
            table[part] = table.get(part, 0) | BIT[name]
    for name, text in _PHRASES.items():
        for part in text.split("|"):
            if not part.isascii():
                table[part] = table.get(part, 0) | PHRASE_BIT[name] << len(GROUPS)
    return table


WORDS = _words()
LATIN_PHRASES = _latin_phrases()
MARKS = _marks()
GROUP_BITS = (1 << len(GROUPS)) - 1


def phrases_in(words: list[str], different: set[str]) -> int:
    """Bits of the Latin phrases in a text. `words` are its words in order, `different` the distinct ones."""
    mask = 0
    spaced = ""
    for word in LATIN_PHRASES.keys() & different:
        spaced = spaced or f" {' '.join(words)} "
        for phrase, bit in LATIN_PHRASES[word]:
            if phrase in spaced:
                mask |= bit
    return mask
