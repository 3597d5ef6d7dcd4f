"""Sentences that simulated answers are made of, by language. Each stands alone, so that any order reads well."""

from __future__ import annotations

from collections.abc import Mapping

SENTENCES: Mapping[str, tuple[str, ...]] = {
    "en": (
        "It helps to look at the whole before turning to the parts.",
        "The first thing to settle is what the result will be used for.",
        "A small example makes the main idea easier to see.",
        "In practice, most of the effort goes into preparing the ground.",
        "Two causes are usually named, and they tend to appear together.",
        "Costs rise slowly at the start and more steeply towards the end.",
        "For that reason, it is worth measuring before changing anything.",
        "Experience from similar cases points in the same direction.",
        "There is a trade-off here between speed and accuracy.",
        "Some of these steps can be left out when time is short.",
        "The weather, the season and the number of visitors all play a role.",
        "A good plan leaves room for what cannot be foreseen.",
        "It is also common to ask somebody who has done it before.",
        "The figures from last year give a useful point of comparison.",
        "Neither approach is better in every situation.",
        "When the pieces are laid out side by side, the pattern becomes clear.",
        "Keeping notes along the way saves work later on.",
        "What matters most is that everyone involved knows the next step.",
        "The older method is still used where reliability counts more than comfort.",
        "In short, start simple and add detail only where it pays.",
    ),
    "ja": (
        "まず全体の流れを確認しておくと、細かい点も理解しやすくなります。",
        "目的をはっきりさせることが、最初の大切な一歩です。",
        "簡単な例を一つ挙げると、考え方がよく分かります。",
        "実際には、準備の段階に最も時間がかかることが多いです。",
        "主な原因は二つあり、同時に現れることも珍しくありません。",
        "費用は初めのうちは緩やかに、後になるほど大きく増えていきます。",
        "そのため、何かを変える前に現状を測っておくことをお勧めします。",
        "似た事例の経験からも、同じことが言えます。",
        "ここでは速さと正確さの間で釣り合いを取る必要があります。",
        "時間が限られている場合は、一部の手順を省いても構いません。",
        "季節や天候、訪れる人の数も結果に影響します。",
        "予想できない出来事に備えて、余裕を持たせておくと安心です。",
        "経験のある人に相談してみるのも良い方法です。",
        "昨年の数字は、比較の基準として役に立ちます。",
        "どちらの方法がいつでも優れているというわけではありません。",
        "並べて見比べると、共通する点が見えてきます。",
        "途中で記録を残しておけば、後の作業が楽になります。",
        "次に何をするかを全員が知っていることが重要です。",
        "確実さが求められる場面では、昔からのやり方が今も使われています。",
        "まとめると、簡単なところから始めて、必要な部分だけを詳しくするのが良いでしょう。",
    ),
    "zh": (
        "先了解整体情况，再看细节会更容易。",
        "首先要明确结果的用途。",
        "举一个简单的例子，思路就会清楚一些。",
        "实际上，大部分时间都花在准备工作上。",
        "常见的原因有两个，而且往往同时出现。",
        "成本在开始时增长较慢，后来会越来越快。",
        "因此，在改变之前最好先进行测量。",
        "类似案例的经验也说明了同样的问题。",
        "这里需要在速度和准确性之间取得平衡。",
        "如果时间不够，有些步骤可以省略。",
        "季节、天气和参观人数都会产生影响。",
        "好的计划要为意外情况留出余地。",
        "向有经验的人请教也是不错的办法。",
        "去年的数据可以作为比较的依据。",
        "没有哪一种方法在所有情况下都更好。",
        "总之，从简单的部分开始，必要时再补充细节。",
    ),
    "ko": (
        "먼저 전체 흐름을 살펴보면 세부 내용을 이해하기 쉽습니다.",
        "결과를 어디에 쓸 것인지 정하는 일이 가장 중요합니다.",
        "간단한 예를 하나 들면 핵심이 잘 보입니다.",
        "실제로는 준비 과정에 가장 많은 시간이 걸립니다.",
        "주된 원인은 두 가지이며 함께 나타나는 경우가 많습니다.",
        "비용은 처음에는 천천히, 나중에는 더 빠르게 늘어납니다.",
        "그래서 무엇을 바꾸기 전에 먼저 측정해 보는 것이 좋습니다.",
        "비슷한 사례의 경험도 같은 방향을 가리킵니다.",
        "여기에서는 속도와 정확도 사이의 균형이 필요합니다.",
        "시간이 부족하면 일부 단계는 생략해도 됩니다.",
        "계절과 날씨, 방문객의 수도 영향을 줍니다.",
        "좋은 계획에는 예상하지 못한 일을 위한 여유가 있습니다.",
        "경험이 있는 사람에게 물어보는 것도 방법입니다.",
        "작년의 수치는 비교 기준으로 쓸 만합니다.",
        "요약하면 쉬운 것부터 시작하고 필요한 곳만 자세히 다루면 됩니다.",
    ),
}

LABELS: Mapping[str, tuple[str, ...]] = {
    "en": ("positive", "negative", "neutral"),
    "ja": ("肯定", "否定", "中立"),
    "zh": ("正面", "负面", "中性"),
    "ko": ("긍정", "부정", "중립"),
}

THOUGHTS: Mapping[str, tuple[str, ...]] = {
    "en": (
        "Let me check what is being asked.",
        "That would fit, but the other reading is possible too.",
        "So the steps are clear; the order matters.",
        "I should verify the middle part once more.",
    ),
    "ja": (
        "何が求められているかを確認する。",
        "その読み方も合うが、別の解釈もあり得る。",
        "手順は明らかで、順番が大事だ。",
        "途中の部分をもう一度確かめておこう。",
    ),
    "zh": ("先确认问题要求什么。", "这样可以，但也有另一种理解。", "步骤清楚了，顺序很重要。", "中间部分再检查一遍。"),
    "ko": (
        "무엇을 묻는지 먼저 확인하자.",
        "그 해석도 맞지만 다른 해석도 가능하다.",
        "순서가 중요하다.",
        "중간 부분을 다시 확인해야 한다.",
    ),
}

CODE: tuple[str, ...] = (
    "def total(values: list[float]) -> float:\n    result = 0.0\n    for value in values:\n        result += value\n"
    "    return result\n\n\n",
    "class Counter:\n    def __init__(self) -> None:\n        self.count = 0\n\n"
    "    def add(self, step: int = 1) -> int:\n"
    "        self.count += step\n        return self.count\n\n\n",
    'def read_lines(path: str) -> list[str]:\n    with open(path, encoding="utf-8") as file:\n'
    "        return [line.rstrip() for line in file if line.strip()]\n\n\n",
    "def largest(items: dict[str, int]) -> str | None:\n    if not items:\n        return None\n"
    "    return max(items, key=lambda name: items[name])\n\n\n",
    "def chunks(items: list[int], size: int) -> list[list[int]]:\n"
    "    return [items[start : start + size] for start in range(0, len(items), size)]\n\n\n",
    "def retry(action, attempts: int = 3):\n    for attempt in range(attempts):\n        try:\n"
    "            return action()\n"
    "        except OSError:\n            if attempt == attempts - 1:\n                raise\n\n\n",
)
