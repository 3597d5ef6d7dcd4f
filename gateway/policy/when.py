"""The condition of a rule: `when: {task: [...], output_tokens: {below: 32}, ...}`, all of which must hold.

A condition is compiled once, when the policy is read, to a tuple of plain predicates, the cheapest first; `matches`
only runs them. There is no expression language: what these names cannot express does not belong in a rule.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from math import inf
from operator import attrgetter
from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from gateway.policy.sections import Section
from gateway.policy.values import Filled, Name, Switch, as_list, integer, is_off, number, quoted, switch, text, wrong
from gateway.records import keyword_record
from gateway.types import Structure, Task


@keyword_record
class Facts:
    """What a condition may ask about a request. Lengths are tokens."""

    model: str = ""
    """The policy's model, aliases resolved."""
    task: Task = Task.UNKNOWN
    output_tokens: float = 0.0
    input_tokens: int = 0
    language: str = "und"
    tools: int = 0
    structure: Structure = Structure.NONE
    thinking: bool | None = None
    stream: bool = False
    headers: Mapping[str, str] = field(default_factory=dict)
    """By lower-case name; only those in `Policy.header_names` are ever asked for."""
    key: str | None = None
    """The API key's name."""


Predicate = Callable[[Facts], bool]


@dataclass(frozen=True, slots=True)
class Numbers:
    """Any of `values`, or `at_least` <= x < `below`."""

    values: frozenset[int] | None = None
    at_least: float | None = None
    below: float | None = None


def _numbers(value: object) -> Numbers:
    if isinstance(value, dict):
        unknown = [key for key in value if key not in ("at_least", "below")]
        if unknown or not value:
            raise wrong("expected {at_least: N}, {below: N} or both: at_least <= x < below")
        low, high = (None if value.get(key) is None else number(value[key]) for key in ("at_least", "below"))
        if low is None and high is None:
            raise wrong("expected a number for at_least or below")
        if (low is not None and low < 0) or (high is not None and high <= 0):
            raise wrong("a number of tokens or tools is not below zero")
        if low is not None and high is not None and low >= high:
            raise wrong("at_least is not below `below`, so that nothing can match")
        return Numbers(at_least=low, below=high)
    items = value if isinstance(value, list) else [value]
    if not items:
        raise wrong("an empty list matches nothing")
    return Numbers(values=frozenset(integer(item) for item in items))


def _tools(value: object) -> Numbers:
    if isinstance(value, bool) or (isinstance(value, str) and not value.isdigit()):
        return Numbers(at_least=1) if switch(value) else Numbers(below=1)
    return _numbers(value)


def _schema(value: object) -> frozenset[Structure]:
    every = frozenset(Structure) - {Structure.NONE}
    items = value if isinstance(value, list) else [value]
    if not items:
        raise wrong("an empty list matches nothing")
    found: set[Structure] = set()
    for item in items:
        if isinstance(item, str) and item in set(Structure):
            found.add(Structure(item))
        elif isinstance(item, bool) or is_off(item):
            found |= every if item is True else {Structure.NONE}
        else:
            known = ", ".join(Structure)
            raise wrong(f"{quoted(item)} is not a kind of schema; expected true, false or any of {known}")
    return frozenset(found)


def _headers(value: object) -> dict[str, bool | frozenset[str]]:
    if not isinstance(value, dict) or not value:
        raise wrong("expected a mapping such as {x-batch: nightly}, or {x-batch: true} for any value")
    found: dict[str, bool | frozenset[str]] = {}
    for key, wanted in value.items():
        if not key or not key.replace("-", "").replace("_", "").isalnum() or not key.isascii():
            raise wrong(f"{quoted(key)} is not a header name")
        if key.lower() in ("authorization", "proxy-authorization", "cookie", "x-api-key"):
            raise wrong(f"{quoted(key)} carries credentials; use `key` to match an API key by its name")
        if isinstance(wanted, bool):
            found[key.lower()] = wanted
        else:
            items = wanted if isinstance(wanted, list) else [wanted]
            found[key.lower()] = frozenset(str(i) if type(i) is int else text(i) for i in items)
    return found


def _language(value: object) -> str:
    code = text(value).lower()
    if code in ("jp", "cn", "kr"):
        raise wrong(f"`{code}` is a country; did you mean `{ {'jp': 'ja', 'cn': 'zh', 'kr': 'ko'}[code] }`?")
    if not (2 <= len(code) <= 3 and code.isascii() and code.isalpha()):
        raise wrong("expected an ISO 639 code such as en or ja, or und")
    return code


def _task(value: object) -> object:
    return Task(value) if isinstance(value, str) and value in set(Task) else value


Many = BeforeValidator(as_list)
Tasks = Annotated[tuple[Annotated[Task, BeforeValidator(_task)], ...], Many, Filled]
Languages = Annotated[tuple[Annotated[str, BeforeValidator(_language)], ...], Many, Filled]
Names = Annotated[tuple[Name, ...], Many, Filled]
NumberTest = Annotated[Numbers, BeforeValidator(_numbers)]
ToolTest = Annotated[Numbers, BeforeValidator(_tools)]
SchemaTest = Annotated[frozenset[Structure], BeforeValidator(_schema)]
HeaderTest = Annotated[dict[str, bool | frozenset[str]], BeforeValidator(_headers)]


class When(Section):
    """A condition. Every field that is given must hold; a list means any of its items."""

    task: Tasks | None = None
    output_tokens: NumberTest | None = None
    input_tokens: NumberTest | None = None
    language: Languages | None = None
    tools: ToolTest | None = None
    """true: any tool is offered; or a test of their number."""
    schema_: SchemaTest | None = Field(default=None, alias="schema")
    """true: the answer is constrained in any way; or the kinds of `Structure`."""
    thinking: Switch | None = None
    """false matches requests that do not ask for thinking."""
    stream: Switch | None = None
    header: HeaderTest | None = None
    key: Names | None = None
    """Names of `access.keys`."""
    model: Names | None = None
    """Models by name, not by alias."""

    @cached_property
    def tests(self) -> tuple[Predicate, ...]:
        # Not a private attribute: pydantic looks these up in Python, which costs more than a test.
        return tuple(_compile(self))

    def matches(self, facts: Facts) -> bool:
        for test in self.tests:  # noqa: SIM110 (a generator costs more than the tests)
            if not test(facts):
                return False
        return True

    @property
    def header_names(self) -> frozenset[str]:
        """Lower-case names of the request headers that `matches` looks at."""
        return frozenset(self.header or ())


def _compile(when: When) -> list[Predicate]:
    tests: list[Predicate] = []
    if when.stream is not None:
        stream = when.stream
        tests.append(lambda facts: facts.stream is stream)
    if when.thinking is not None:
        thinking = when.thinking
        tests.append(lambda facts: (facts.thinking is True) is thinking)
    for fact, values in (("task", when.task), ("language", when.language), ("key", when.key), ("model", when.model)):
        if values is not None:
            tests.append(_one_of(fact, values))
    if when.schema_ is not None:
        tests.append(_one_of("structure", when.schema_))
    ranges = (("tools", when.tools), ("output_tokens", when.output_tokens), ("input_tokens", when.input_tokens))
    tests.extend(_in_range(fact, numbers) for fact, numbers in ranges if numbers is not None)
    tests.extend(_has_header(name, wanted) for name, wanted in (when.header or {}).items())
    return tests


def _one_of(fact: str, values: Collection[Any]) -> Predicate:
    get = attrgetter(fact)
    # A tuple finds a member by identity; a set would call the hash of an Enum, which is slow.
    wanted = tuple(values) if len(values) <= 16 else frozenset(values)
    return lambda facts: get(facts) in wanted


def _in_range(fact: str, numbers: Numbers) -> Predicate:
    get, values = attrgetter(fact), numbers.values
    if values is not None:
        return lambda facts: round(get(facts)) in values
    low = 0.0 if numbers.at_least is None else numbers.at_least
    high = inf if numbers.below is None else numbers.below
    return lambda facts: low <= get(facts) < high


def _has_header(name: str, wanted: bool | frozenset[str]) -> Predicate:
    if isinstance(wanted, bool):
        return lambda facts: (name in facts.headers) is wanted
    return lambda facts: facts.headers.get(name) in wanted


ALWAYS = When()
