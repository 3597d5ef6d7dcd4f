"""From the clients' records, the back ends' journals and the timeline: what the chaos run cost.

*Lost* is a request whose client stayed and got no byte of an answer (a 429, 502, 503 or 504 of the gateway, an error
event before the first content, a closed connection, nothing within the client's patience), although at least one back
end that may serve it was well and in the policy during the whole of the request's life. Failed requests of moments in
which there was no such back end are *excused* and counted apart.

*Duplicated* is a request to which back ends gave a whole answer more than once, or whose client got more than its
answer. A half-done attempt before the first byte is neither: it is what fail-over is.

*Truncated as whole* is less than the answer with nothing that says so.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from tests.benchmarks.chaos_answers import Verdict
from tests.benchmarks.chaos_backend import Executed
from tests.benchmarks.chaos_clients import Record
from tests.benchmarks.chaos_schedule import Timeline

EACH = 4


@dataclass(slots=True)
class Account:
    """The counts that the verdict is made of, and some of what is behind them."""

    requests: int = 0
    verdicts: Counter[str] = field(default_factory=Counter)
    lost: int = 0
    excused: int = 0
    duplicated: int = 0
    truncated_as_whole: int = 0
    failed_over: int = 0
    """Requests that more than one back end saw and whose answer came whole."""
    notes: list[str] = field(default_factory=list)
    """The first violations of each sort, one a line, then how many there were."""


def account(records: Sequence[Record], executed: Executed, timeline: Timeline, began: float) -> Account:
    """`began`: when the chaos did, so that notes can be found in the schedule."""
    found = Account(requests=len(records))
    sorts: Counter[tuple[str, str]] = Counter()
    for record in records:
        verdict = record.judged.verdict
        found.verdicts[verdict.value] += 1
        seen = executed.seen.get(record.marker, [])
        trouble = ""
        if executed.finished.get(record.marker, 0) > 1 or verdict is Verdict.GARBLED:
            found.duplicated += 1
            trouble = "duplicated"
        if verdict is Verdict.SHORT:
            found.truncated_as_whole += 1
            trouble = "truncated as whole"
        if verdict is Verdict.FAILED:
            healthy = timeline.healthy(record.started, record.ended)
            found.lost += bool(healthy)
            found.excused += not healthy
            trouble = f"lost, {healthy} well" if healthy else ""
        found.failed_over += verdict is Verdict.OK and len(seen) > 1
        if not trouble:
            continue
        # A few of each sort: one cause can have hundreds of victims.
        sort = (trouble.partition(",")[0], record.judged.note.partition(":")[0])
        sorts[sort] += 1
        if sorts[sort] <= EACH:
            life = f"{record.started - began:.1f} to {record.ended - began:.1f} s"
            found.notes.append(
                f"{record.marker} ({record.kind}, {life}, sent to {seen}): {trouble}: {record.judged.note}"
            )
    found.notes += [f"{count} x {' '.join(sort)}" for sort, count in sorts.items()]
    return found
