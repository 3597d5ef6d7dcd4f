"""The report of `gateway simulate --plan`: tables and plots, all labelled as simulated."""

from __future__ import annotations

from collections.abc import Sequence

from gateway.figures.report import Plot, Report, Series, Table
from gateway.simulate.plan import Played
from gateway.simulate.study import Study, compare

LABEL = "SIMULATED: a plan to be checked on your hardware with `gateway bench`, not a measurement"
SHOWN = 12
"""Most fleets in the table of tried ones."""


def render(studies: Sequence[Study]) -> Report:
    """One report over all models."""
    need = studies[0].need
    return Report(
        name="plan",
        title=f"Capacity plan: {need.workload.name} at {need.rate:g} requests per second on {need.profile}",
        intro=f"Limits (95th percentiles): {need.slo}. The smallest fleet that keeps them, among all splits into plain "
        f"and MTP slices, routed by the default objective. {LABEL}.",
        findings=tuple(line for one in studies for line in _findings(one)),
        tables=(
            *((_models(studies),) if len(studies) > 1 else ()),
            *(table for one in studies for table in (_tried(one), _what_ifs(one), _card(one))),
        ),
        plots=(*(_by_slices(one) for one in studies), *(_by_load(one) for one in studies), _costs(studies)),
        data={"simulated": True, "plans": [one.as_dict() for one in studies]},
    )


def _findings(one: Study) -> tuple[str, ...]:
    plan, model = one.plan, one.need.model
    if plan is None:
        near = one.chosen
        return (
            f"{model}: no fleet of up to {one.need.most} slices keeps the limits; {near.fleet} keeps them for "
            f"{near.within:.0%} of the requests",
        )
    cards = one.card.number(plan.fleet.slices)
    found = [
        f"{model}: {plan.fleet}, on {cards} card{'s' if cards > 1 else ''}: mean {plan.mean:.2f} s, "
        f"{plan.to_mtp:.0%} of the requests to MTP, {_money(one, plan)} per million output tokens"
    ]
    if not plan.fleet.plain:
        found.append(f"{model}: no plain slice; requests that drafting engines refuse need one (--least-plain 1)")
    for row in one.what_ifs:
        told = "the limits hold" if row.played.keeps else f"{row.played.within:.0%} of the requests stay within"
        needed = f"; {row.needed.fleet} would keep them" if row.needed and not row.played.keeps else ""
        found.append(f"{model}, {row.name}: {told}{needed}")
    return tuple(found)


def _money(one: Study, played: Played) -> str:
    return f"{one.cost(played):.3g} {one.card.unit}".removesuffix(" money")


COLUMNS = ("mean s", "TTFT p95 s", "TPOT p95 ms", "E2E p95 s", "within limits", "to MTP")


def _figures(played: Played) -> tuple[str, ...]:
    return (
        f"{played.mean:.2f}",
        f"{played.ttft:.2f}",
        f"{1000 * played.tpot:.1f}",
        f"{played.e2e:.1f}",
        f"{played.within:.1%}",
        f"{played.to_mtp:.0%}",
    )


def _tried(one: Study) -> Table:
    plan = one.plan
    ordered = sorted(one.tried, key=lambda p: (not p.keeps, p.fleet.slices if p.keeps else 0, -p.within, p.mean))
    rows = [
        (("* " if played is plan else "") + str(played.fleet), *_figures(played), "yes" if played.keeps else "no")
        for played in ordered[:SHOWN]
    ]
    note = f"The best {len(rows)} of {len(one.tried)} tried." + (" * the plan." if plan else "")
    return Table(f"{one.need.model}: fleets, simulated", ("slices", *COLUMNS, "keeps limits"), tuple(rows), note)


def _what_ifs(one: Study) -> Table:
    rows = [
        (
            row.name,
            str(row.played.fleet),
            *_figures(row.played),
            "yes" if row.played.keeps else "no",
            str(row.needed.fleet) if row.needed else "-",
        )
        for row in one.what_ifs
    ]
    columns = ("what if", "slices then", *COLUMNS, "keeps limits", "would keep them")
    return Table(f"{one.need.model}: what if, simulated", columns, tuple(rows))


def _card(one: Study) -> Table:
    """As in the G4 guide: throughput and cost per million tokens of a card, by slices in use."""
    first = next((row.played for row in one.in_use if row.played), None)
    base = one.card.per_million(1, first.tokens_per_second) if first else None
    rows = []
    for row in one.in_use:
        if row.played is None or base is None:
            rows.append((str(row.slices), *["-"] * 5))
            continue
        cost = one.cost(row.played)
        rows.append(
            (
                str(row.slices),
                str(row.played.fleet),
                f"{row.played.rate:.2f}",
                f"{row.played.tokens_per_second:.0f}",
                f"{cost:.3g}",
                f"{cost / base - 1:+.0%}",
            )
        )
    unit = f"{one.card.unit} per million output tokens"
    columns = (
        "slices in use",
        "best split",
        "requests/s within limits",
        "output tok/s",
        unit,
        "against the first",
    )
    price = "no price given (--card-price)" if one.card.price is None else f"a card costs {one.card.price:g} an hour"
    return Table(f"{one.need.model}: one card, simulated", columns, tuple(rows), f"Cost of the whole card; {price}.")


def _models(studies: Sequence[Study]) -> Table:
    rows = []
    for one, cost in compare(studies):
        plan = one.plan
        rows.append(
            (
                one.need.model,
                str(plan.fleet) if plan else f"more than {one.need.most} slices",
                str(one.card.number(plan.fleet.slices)) if plan else "-",
                f"{plan.mean:.2f}" if plan else "-",
                f"{cost:.3g}" if cost is not None else "-",
            )
        )
    unit = f"{studies[0].card.unit} per million output tokens"
    return Table("Other models, simulated", ("model", "slices", "cards", "mean s", unit), tuple(rows))


def _by_slices(one: Study) -> Plot:
    def line(name: str, played: Sequence[Played]) -> Series:
        return Series(name, tuple((float(p.fleet.slices), 100 * p.within) for p in played))

    sizes = one.sizes
    series = (
        line("plain only", [p for p in sizes if not p.fleet.mtp]),
        line("MTP only", [p for p in sizes if not p.fleet.plain]),
        line("half of each, routed", [p for p in sizes if p.fleet.plain and p.fleet.mtp]),
    )
    title = f"{one.need.model}: requests within the limits by slices, simulated"
    return Plot(title, "slices", "% of requests", tuple(s for s in series if s.points), level=95.0)


def _by_load(one: Study) -> Plot:
    ttft, e2e = (
        Series(name, tuple((played.rate, getattr(played, field)) for played in one.loads))
        for name, field in (("TTFT p95", "ttft"), ("E2E p95", "e2e"))
    )
    title = f"{one.need.model}: {one.chosen.fleet} by requests per second, simulated"
    return Plot(title, "requests per second", "seconds", (ttft, e2e), log_y=True)


def _costs(studies: Sequence[Study]) -> Plot:
    most = max(one.card.slices for one in studies)
    series = tuple(
        Series(
            one.need.model,
            tuple((float(row.slices - 1), one.cost(row.played)) for row in one.in_use if row.played),
        )
        for one in studies
    )
    return Plot(
        "A million output tokens within the limits, by slices of a card in use, simulated",
        "slices in use",
        studies[0].card.unit,
        series,
        categories=tuple(str(number) for number in range(1, most + 1)),
    )
