"""From a wish (model, slice, load) to a recipe: flags, environment, memory; or to a refusal that says what would work.

A recipe never names a device: each engine runs in a container that was given one slice. vLLM resolves a MIG UUID in
CUDA_VISIBLE_DEVICES to the slice's index within its card, and may then use another device.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace

from gateway.deployments.catalog import Catalog, Model, Slice, Weights
from gateway.deployments.guard import Table, overload_guard
from gateway.deployments.memory import Load, Memory, memory
from gateway.deployments.versions import Version
from gateway.policy.sections import Limits
from gateway.profiles.catalog import get_profile

Flag = tuple[str, ...]
"""One option of `vllm serve`: its name, and its value where it takes one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What is asked for. A plain engine has `load.draft_tokens` 0."""

    model: Model
    place: Slice
    load: Load
    version: Version
    served_name: str
    port: int = 8000
    share: float | None = None
    """Replaces the slice's own --gpu-memory-utilization, if engines share a GPU."""
    checkpoint: str | None = None
    assistant: str | None = None
    guard: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """How to start the engine."""

    wish: Wish
    target: str
    """The repository or folder to serve."""
    flags: tuple[Flag, ...]
    environment: tuple[tuple[str, str], ...]
    memory: Memory
    notes: tuple[str, ...]

    @property
    def arguments(self) -> list[str]:
        """All words after `vllm serve`."""
        return [self.target, *(word for flag in self.flags for word in flag)]

    @property
    def mtp(self) -> bool:
        return self.wish.load.draft_tokens > 0


STEPS_AHEAD = 1.5
"""Steps' worth of prompts that an engine is sent; `gateway.upstream.prefill` holds back the rest."""
CONTEXTS = (131072, 65536, 32768, 16384, 8192, 4096, 2048)
"""Context lengths to fall back to."""


def usual_sequences(concurrency: int) -> int:
    """Sequences per step for `concurrency` of full length: most are short, and vLLM queues what does not fit."""
    return min(256, 16 * concurrency)


class Refused(Exception):
    """The engine would not start or not work. `instead` lists what would, smallest change first."""

    def __init__(self, why: str, instead: tuple[str, ...], found: Memory | None = None) -> None:
        super().__init__(why)
        self.why = why
        self.instead = instead
        self.memory = found


def make(wish: Wish, known: Catalog) -> Recipe:
    """The recipe for a wish. Raises Refused."""
    _refuse_version(wish, known)
    _refuse_shape(wish)
    found = memory(wish.model, wish.load, wish.place, known.overhead, wish.share)
    if not found.fits:
        why = (
            f"{wish.model.name} does not fit {wish.place.name}: it needs {found.total:.1f} GiB of "
            f"{found.budget:.1f} GiB that vLLM may use"
        )
        raise Refused(why, tuple(_what_fits(wish, known)), found)
    table, remark = _guard(wish, known)
    return Recipe(
        wish=wish,
        target=_target(wish),
        flags=tuple(_flags(wish, table)),
        environment=tuple(_environment(wish, known)),
        memory=found,
        notes=tuple(_notes(wish, known, remark)),
    )


def _refuse_version(wish: Wish, known: Catalog) -> None:
    mtp = wish.load.draft_tokens > 0
    broken = [row for row in known.engines.broken if row.where.holds(wish.version, wish.model.name, mtp)]
    if not broken:
        return
    works = max(row.works for row in broken)
    kind = "with MTP" if mtp else "plain"
    why = f"vLLM {wish.version} is known broken for {wish.model.name} {kind}: " + "; ".join(
        f"{row.why} ({row.source})" for row in broken
    )
    instead = [f"--vllm {works} or newer"]
    if mtp and not any(row.where.holds(wish.version, wish.model.name, False) for row in known.engines.broken):
        instead.append("--plain")
    raise Refused(why, tuple(instead))


def _refuse_shape(wish: Wish) -> None:
    load = wish.load
    if load.context > wish.model.context:
        most = wish.model.context
        raise Refused(f"{wish.model.name} is made for {most} tokens of context", (f"--context {most}",))
    if load.weights not in wish.model.weights and wish.checkpoint is None:
        why = f"no {load.weights} checkpoint of {wish.model.name} is known"
        raise Refused(why, ("--checkpoint NAME --weights-gb SIZE", f"--weights {wish.model.weights[-1]}"))


def _target(wish: Wish) -> str:
    if wish.checkpoint:
        return wish.checkpoint
    if wish.load.weights is Weights.NVFP4 and wish.model.nvfp4:
        return wish.model.nvfp4.repository
    return wish.model.repository


def _guard(wish: Wish, known: Catalog) -> tuple[Table, str | None]:
    """The table by batch size, empty if there is none, and then why."""
    k = wish.load.draft_tokens
    if not k or not wish.guard:
        return (), None
    if wish.version < known.engines.guard_from:
        return (), f"no table by batch size before vLLM {known.engines.guard_from}"
    # Not beyond --max-num-seqs: such rows are never reached, and each depth takes CUDA graphs from the others.
    table = overload_guard(get_profile(wish.place.profile, wish.model.profile), k, wish.load.sequences)
    if len(table) == 1:
        return (), f"no table by batch size: drafting pays up to {table[0][1]} sequences by the speed profile"
    return table, None


def _flags(wish: Wish, table: Table) -> Iterator[Flag]:
    load = wish.load
    yield "--served-model-name", wish.served_name
    yield "--host", "0.0.0.0"
    yield "--port", str(wish.port)
    yield "--dtype", "bfloat16"
    if load.weights is Weights.FP8 and wish.checkpoint is None:
        yield "--quantization", "fp8"
    if load.fp8_cache:
        yield "--kv-cache-dtype", "fp8"
    yield "--max-model-len", str(load.context)
    yield "--gpu-memory-utilization", f"{wish.place.share if wish.share is None else wish.share:g}"
    # Explicit, because on a MIG slice vLLM may take the card's 96 GB for its own and choose a big GPU's defaults.
    yield "--max-num-seqs", str(load.sequences)
    yield "--max-num-batched-tokens", str(load.batched_tokens)
    yield ("--enable-prefix-caching",)
    if load.text_only:
        yield ("--language-model-only",)
    yield "--reasoning-parser", "gemma4"
    yield "--tool-call-parser", "gemma4"
    yield ("--enable-auto-tool-choice",)
    yield ("--enable-prompt-tokens-details",)
    yield ("--enable-per-request-metrics",)
    yield "--shutdown-timeout", "30"
    if load.draft_tokens:
        yield "--per-request-spec-decode-metrics", "summary"
        yield "--speculative-config", _speculative(wish, table)


def _speculative(wish: Wish, table: Table) -> str:
    said: dict[str, object] = {
        "method": "mtp",
        "model": wish.assistant or wish.model.assistant,
        "num_speculative_tokens": wish.load.draft_tokens,
    }
    if table:
        said["num_speculative_tokens_per_batch_size"] = [list(row) for row in table]
    return json.dumps(said, separators=(",", ":"))


def _environment(wish: Wish, known: Catalog) -> Iterator[tuple[str, str]]:
    mtp = wish.load.draft_tokens > 0
    chosen = {
        row.name: row.value for row in known.engines.environment if row.where.holds(wish.version, wish.model.name, mtp)
    }
    yield from sorted(chosen.items())


def _notes(wish: Wish, known: Catalog, remark: str | None) -> Iterator[str]:
    load, engines = wish.load, known.engines
    mtp = load.draft_tokens > 0
    if wish.version not in engines.checked:
        checked = ", ".join(str(version) for version in engines.checked)
        yield f"flags were checked against vLLM {checked}, not {wish.version}"
    if remark:
        yield remark
    for row in engines.notes:
        if row.where.holds(wish.version, wish.model.name, mtp):
            yield row.text
    if mtp and load.weights is not Weights.BF16:
        yield "a drafter beside a quantised target may draft badly (vllm-project/vllm#41789): watch the acceptance rate"
    if mtp and load.fp8_cache and wish.version < engines.fp8_cache_mtp_from:
        yield f"an fp8 KV cache reaches the drafter correctly from vLLM {engines.fp8_cache_mtp_from} on"
    prompts = round(load.batched_tokens * STEPS_AHEAD)
    if prompts != Limits().prefill:
        # vLLM tells the size of its steps nowhere, so that the gateway cannot find out.
        yield f"the pool's policy needs `limits: {{prefill: {prompts}}}`, {STEPS_AHEAD:g} of its steps"
    if wish.place.is_mig:
        yield "one slice for each container, and no MIG UUID in CUDA_VISIBLE_DEVICES"


def _what_fits(wish: Wish, known: Catalog) -> Iterator[str]:
    """Changes that make it fit: single ones, smallest first; if none, several together; and a larger slice."""

    def fits(load: Load, place: Slice = wish.place) -> bool:
        return memory(wish.model, load, place, known.overhead, wish.share).fits

    load = wish.load
    kinds = [kind for kind in wish.model.weights if kind is not load.weights and wish.checkpoint is None]
    single = [
        *((f"--context {n}", replace(load, context=n)) for n in CONTEXTS if n < load.context),
        *((f"--concurrency {n}", replace(load, concurrency=n)) for n in range(load.concurrency - 1, 0, -1)),
        ("--kv-cache fp8", replace(load, fp8_cache=True)),
        *((f"--weights {kind}", replace(load, weights=kind)) for kind in kinds),
        ("--plain", replace(load, draft_tokens=0)),
    ]
    # One of each kind of change: the first, which is the smallest.
    smallest: dict[str, str] = {}
    for text, changed in single:
        if fits(changed):
            smallest.setdefault(text.split()[0], text)
    yield from smallest.values()
    if not smallest:
        together = next((text for text, changed in _together(load, kinds) if fits(changed)), None)
        if together:
            yield together
    larger = (place for place in known.slices.values() if place.gib > wish.place.gib and fits(load, place))
    yield from (f"--slice {place.name}" for place in list(larger)[:1])


def _together(load: Load, kinds: list[Weights]) -> Iterator[tuple[str, Load]]:
    """Several changes at once, those that cost a user least first."""
    for weights in (load.weights, *kinds):
        for plain in dict.fromkeys((load.draft_tokens == 0, True)):
            for context in (load.context, *(n for n in CONTEXTS if n < load.context)):
                for concurrency in (load.concurrency, *(n for n in (4, 2, 1) if n < load.concurrency)):
                    changed = replace(
                        load,
                        weights=weights,
                        draft_tokens=0 if plain else load.draft_tokens,
                        concurrency=concurrency,
                        context=context,
                        sequences=min(load.sequences, usual_sequences(concurrency)),
                    )
                    words = [f"--weights {weights}"] if weights is not load.weights else []
                    words += ["--plain"] if plain and load.draft_tokens else []
                    words += [f"--concurrency {concurrency}"] if concurrency != load.concurrency else []
                    words += [f"--context {context}"] if context != load.context else []
                    yield " ".join(words), changed
