"""How much of a slice's memory an engine needs, item by item.

    weights  = linear parameters x bytes + embeddings x 2 (embeddings are not quantised) + towers x 2
    KV cache = sequences x (global layers' bytes x context + sliding layers' bytes x min(context, window))
               + sliding layers' bytes x tokens of one step (a prompt that is being read fills more than a window)
    step     = tokens of one step x (6 hidden + 3 MLP) x 2 bytes + sequences x (k + 1) x vocabulary x 8 bytes (logits)

The step's term is derived, not measured: activations of one layer and two copies of the logits in 32 bits.
"""

from __future__ import annotations

from dataclasses import dataclass

from gateway.deployments.catalog import Model, Overhead, Shape, Slice, Weights

GIB = 2**30
BF16 = 2
"""Bytes of a bf16 number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What the engine has to hold and to compute concurrently."""

    context: int
    """Longest sequence, prompt and answer, in tokens."""
    concurrency: int
    """Sequences of full length that the KV cache must hold at once."""
    sequences: int
    """Sequences in one step; most are shorter than `context`."""
    batched_tokens: int
    """Tokens in one step."""
    draft_tokens: int = 0
    """0: no drafter."""
    weights: Weights = Weights.BF16
    fp8_cache: bool = False
    text_only: bool = False
    """Without the vision and audio towers."""
    weights_gb: float | None = None
    """Size of a checkpoint of the user's own, 10^9 bytes."""


@dataclass(frozen=True, slots=True)
class Row:
    """One item of the sum."""

    what: str
    gib: float
    how: str
    """How the figure is computed."""


@dataclass(frozen=True, slots=True)
class Memory:
    """The items, and the `budget` of GiB that vLLM may use: `slice.gib` x `share`."""

    rows: tuple[Row, ...]
    budget: float

    @property
    def total(self) -> float:
        return sum(row.gib for row in self.rows)

    @property
    def fits(self) -> bool:
        return self.total <= self.budget


def parameters(shape: Shape) -> tuple[int, int]:
    """Linear and embedding parameters of the decoder; norms and the towers are not counted."""
    linear = shape.hidden * shape.layers * shape.per_layer_input
    for layer in range(shape.layers):
        everywhere = shape.is_global(layer)
        head = shape.global_head if everywhere else shape.head
        kv_heads = shape.global_kv_heads if everywhere else shape.kv_heads
        projections = 1 if everywhere and shape.k_eq_v else 2
        linear += shape.hidden * head * (2 * shape.heads + projections * kv_heads)
        shares = layer >= shape.layers - shape.shared_kv_layers
        linear += 3 * shape.hidden * shape.intermediate * (2 if shape.wide_shared and shares else 1)
        linear += shape.experts * (3 * shape.expert_intermediate + 1) * shape.hidden
        linear += 2 * shape.hidden * shape.per_layer_input
    return linear, shape.vocabulary * (shape.hidden + shape.layers * shape.per_layer_input)


def cache_bytes(shape: Shape, number: int = BF16) -> tuple[int, int]:
    """Bytes of keys and values per token: in the global layers, in the sliding ones. Shared layers store none."""
    globally = sliding = 0
    for layer in range(shape.layers - shape.shared_kv_layers):
        if shape.is_global(layer):
            globally += 2 * shape.global_kv_heads * shape.global_head * number
        else:
            sliding += 2 * shape.kv_heads * shape.head * number
    return globally, sliding


def memory(model: Model, load: Load, place: Slice, overhead: Overhead, share: float | None = None) -> Memory:
    """The memory for `model` under `load` on `place`; `share` replaces the slice's own."""
    k = load.draft_tokens
    rows = [_weights(model, load)]
    if not load.text_only and load.weights_gb is None and load.weights is not Weights.NVFP4:
        rows.append(Row("towers", model.tower_parameters * BF16 / GIB, "vision and audio, bf16"))
    if k:
        rows.append(Row("drafter", model.drafter_parameters * BF16 / GIB, "the paired assistant, bf16"))
    rows.append(_cache(model.shape, load))
    rows.append(_step(model.shape, load))
    rows.append(Row("graphs", overhead.graphs_mtp if k else overhead.graphs_plain, "CUDA graphs, as measured with E4B"))
    rows.append(Row("runtime", overhead.runtime, "CUDA context, allocator: an allowance"))
    return Memory(tuple(rows), place.gib * (place.share if share is None else share))


def _weights(model: Model, load: Load) -> Row:
    if load.weights_gb is not None:
        return Row("weights", load.weights_gb * 1e9 / GIB, "the checkpoint's size, as given")
    if load.weights is Weights.NVFP4 and model.nvfp4:
        return Row("weights", model.nvfp4.gigabytes * 1e9 / GIB, f"size of {model.nvfp4.repository}, towers included")
    linear, embeddings = parameters(model.shape)
    size = 1 if load.weights is Weights.FP8 else BF16
    how = f"{(linear + embeddings) / 1e9:.2f} B parameters, {load.weights}"
    if load.weights is Weights.FP8:
        how += f" but for {embeddings / 1e9:.2f} B of embeddings"
    return Row("weights", (linear * size + embeddings * BF16) / GIB, how)


def _cache(shape: Shape, load: Load) -> Row:
    number = 1 if load.fp8_cache else BF16
    globally, sliding = cache_bytes(shape, number)
    per_sequence = globally * load.context + sliding * min(load.context, shape.window)
    reading = sliding * min(load.batched_tokens, load.context)
    kind = "fp8" if load.fp8_cache else "bf16"
    how = f"{load.concurrency} x {load.context} tokens at {per_sequence / 2**20:.0f} MiB, {kind}"
    return Row("KV cache", (load.concurrency * per_sequence + reading) / GIB, how)


def _step(shape: Shape, load: Load) -> Row:
    active = max(shape.intermediate, 9 * shape.expert_intermediate if shape.experts else 0)
    activations = load.batched_tokens * (6 * shape.hidden + 3 * active) * BF16
    logits = load.sequences * (load.draft_tokens + 1) * shape.vocabulary * 8
    how = f"{load.batched_tokens} tokens, {load.sequences} sequences a step (derived)"
    return Row("one step", (activations + logits) / GIB, how)
