"""YAML text -> plain data, with the line and column of every key and value.

Scalars follow YAML 1.2's core schema: only `true` and `false` are booleans, so that the language code `no` and a
switch's `off` stay text, `010` is ten and `12:30` is no number. Text may hold `${NAME}` and `${NAME:-default}`;
`$${` stands for a plain `${`. Duplicate keys, tags, empty values, cyclic anchors, deep nesting and aliases that
expand without bound are problems, not surprises.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass, field

import yaml

from gateway.policy.problems import Loc
from gateway.policy.values import Expanded

MAX_DEPTH = 32
MAX_VALUES = 50_000
Mark = tuple[int, int]
"""Line and column, from 1."""

_TAG = "tag:yaml.org,2002:"
_VARIABLE = re.compile(r"\$\$\{|\$\{(?:([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\})?", re.ASCII)
_EXPLAINED = (
    ("found undefined alias", "an alias without its anchor; text that begins with * needs quotes"),
    ("second occurrence", "an anchor with this name exists already"),
    ("found undefined tag handle", "an unknown tag; text that begins with ! needs quotes"),
    ("found character '\\t'", "a tab; YAML is indented with spaces"),
    ("but found another document", "a policy is one YAML document, without `---` in the middle"),
)


_LOOKALIKE = re.compile("[\uff1a\u3000\u00a0\uff0c\uff5b\uff5d\uff3b\uff3d\uff03\uff0d\u201c\u201d\u2018\u2019]")

_HALF = re.compile("[\ud800-\udfff]")

_NUMBERS = [
    (f"{_TAG}int", re.compile(r"[-+]?[0-9]+$")),
    (f"{_TAG}float", re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?$")),
]
_BOOL = [(f"{_TAG}bool", re.compile("(true|True|TRUE|false|False|FALSE)$"))]
_NULL = [(f"{_TAG}null", re.compile("(~|null|Null|NULL|)$"))]
_RESOLVERS = {
    **dict.fromkeys("tTfF", _BOOL),
    **dict.fromkeys(("~", "n", "N", ""), _NULL),
    **dict.fromkeys("-+.0123456789", _NUMBERS),
    "<": [(f"{_TAG}merge", re.compile("<<$"))],
}
"""By first character, as PyYAML looks them up."""


class _TooDeep(Exception):
    def __init__(self, mark: Mark) -> None:
        self.mark = mark


class _Composer(yaml.SafeLoader):
    """PyYAML up to its node graph, with scalar types of our own and bounded recursion."""

    yaml_implicit_resolvers = _RESOLVERS
    depth = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]
            raise _TooDeep((mark.line + 1, mark.column + 1))
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node


@dataclass(slots=True)
class Tree:
    """`values` and `keys` hold the position of the value and of the key at each path."""

    data: object = None
    values: dict[Loc, Mark] = field(default_factory=dict)
    keys: dict[Loc, Mark] = field(default_factory=dict)
    problems: list[tuple[Mark, Loc, str]] = field(default_factory=list)

    def position(self, loc: Loc, *, key: bool = False) -> Mark:
        """Of the value (or the key) at `loc`, or of the nearest thing above it that exists."""
        if key and loc in self.keys:
            return self.keys[loc]
        if loc in self.values:
            return self.values[loc]
        for end in range(len(loc) - 1, -1, -1):
            above = loc[:end]
            if above in self.keys or above in self.values:
                return self.keys.get(above) or self.values[above]
        return (1, 1)


def read_tree(text: str, env: Mapping[str, str]) -> Tree:
    """Never raises for what a text may hold; look at `problems` first, and at `data` only as far as it goes."""
    tree = Tree()
    try:
        loader = _Composer(text)
        try:
            node = loader.get_single_node()
        finally:
            loader.dispose()
    except _TooDeep as deep:
        tree.problems.append((deep.mark, (), f"nested deeper than {MAX_DEPTH} levels"))
    except yaml.reader.ReaderError as error:
        before = text[: error.position]
        mark = (before.count("\n") + 1, error.position - before.rfind("\n"))
        tree.problems.append((mark, (), "a control character or another one that YAML does not allow"))
    except yaml.MarkedYAMLError as error:
        tree.problems.append(_syntax(error, text))
    else:
        if node is None:
            tree.problems.append(((1, 1), (), "the file is empty; a policy has `pools` and `models`"))
        else:
            _Reader(tree, env).read(node)
    return tree


def _syntax(error: yaml.MarkedYAMLError, text: str) -> tuple[Mark, Loc, str]:
    at = error.problem_mark or error.context_mark
    mark = (at.line + 1, at.column + 1) if at is not None else (1, 1)
    problem = error.problem or error.context or "cannot be read"
    # PyYAML quotes the text of aliases, anchors and tags, which may be a key that lacks its quotes.
    message = next((ours for theirs, ours in _EXPLAINED if problem.startswith(theirs)), "")
    if not message:
        message = f"not YAML: {problem}"
        if error.context is not None and error.context_mark is not None and error.context.startswith("while"):
            message += f" ({error.context} that begins on line {error.context_mark.line + 1})"
    line = text.split("\n")[mark[0] - 1] if mark[0] <= text.count("\n") + 1 else ""
    if "${" in line:
        message += "; text with ${...} within [...] or {...} needs quotes"
    return mark, (), message + _lookalike(text, mark[0])


def _lookalike(text: str, line: int) -> str:
    """A hint at what a Japanese or Chinese keyboard or a web page puts in place of YAML's own signs, on this line or on
    the one before, where a key that lacks its colon goes unnoticed until the next."""
    lines = text.split("\n")
    for number in (line - 1, line):
        found = _LOOKALIKE.search(lines[number - 1]) if 0 < number <= len(lines) else None
        if found:
            return f"; line {number} has {unicodedata.name(found[0])}, which YAML reads as text"
    return ""


class _Exhausted(Exception):
    pass


class _Reader:
    """Walks the node graph once. A node that several aliases share is read at each of its places."""

    def __init__(self, tree: Tree, env: Mapping[str, str]) -> None:
        self._tree = tree
        self._env = env
        self._open: set[int] = set()
        self._left = MAX_VALUES

    def read(self, root: yaml.Node) -> None:
        try:
            self._tree.data = self._value(root, ())
        except _Exhausted:
            self._tree.problems.append((_mark(root), (), f"aliases expand to more than {MAX_VALUES} values"))

    def _problem(self, node: yaml.Node, loc: Loc, message: str) -> None:
        self._tree.problems.append((_mark(node), loc, message))

    def _value(self, node: yaml.Node, loc: Loc) -> object:
        self._left -= 1
        if self._left < 0:
            raise _Exhausted
        self._tree.values[loc] = _mark(node)
        if isinstance(node, yaml.ScalarNode):
            return self._scalar(node, loc)
        if node.tag not in (f"{_TAG}map", f"{_TAG}seq"):
            self._problem(node, loc, "tags are not allowed; text that begins with ! needs quotes")
        if id(node) in self._open or len(loc) > MAX_DEPTH:
            self._problem(node, loc, "an anchor that contains itself, or aliases nested too deep")
            return None
        self._open.add(id(node))
        try:
            if isinstance(node, yaml.MappingNode):
                return self._mapping(node, loc)
            return [self._value(item, (*loc, index)) for index, item in enumerate(node.value)]
        finally:
            self._open.discard(id(node))

    def _mapping(self, node: yaml.MappingNode, loc: Loc) -> dict[str, object]:
        found: dict[str, object] = {}
        lines: dict[str, int] = {}
        merges: list[yaml.Node] = []
        for key, value in node.value:
            if key.tag == f"{_TAG}merge":
                merges.append(value)
            elif not isinstance(key, yaml.ScalarNode):
                self._problem(key, loc, "a key is plain text")
            elif key.value in lines:
                first, second = lines[key.value], _mark(key)[0]
                where = f"twice on line {first}" if first == second else f"on lines {first} and {second}"
                self._problem(key, (*loc, key.value), f"duplicate key `{key.value[:60]}`, {where}")
            else:
                lines[key.value] = _mark(key)[0]
                name = self._name(key, loc)
                self._tree.keys[(*loc, name)] = _mark(key)
                found[name] = self._value(value, (*loc, name))
        for value in merges:
            self._merge(value, loc, found)
        return found

    def _merge(self, node: yaml.Node, loc: Loc, found: dict[str, object]) -> None:
        """`<<: *anchor`, or a list of them: their keys where there is none yet."""
        sources = node.value if isinstance(node, yaml.SequenceNode) else [node]
        for source in sources:
            if not isinstance(source, yaml.MappingNode) or id(source) in self._open:
                self._problem(source, loc, "`<<` takes a mapping, or a list of mappings")
                continue
            for key, value in source.value:
                if key.tag == f"{_TAG}merge":
                    self._problem(key, loc, "`<<` within a mapping that is merged itself is not supported")
                elif isinstance(key, yaml.ScalarNode) and (name := self._name(key, loc)) not in found:
                    self._tree.keys[(*loc, name)] = _mark(key)
                    found[name] = self._value(value, (*loc, name))

    def _name(self, key: yaml.ScalarNode, loc: Loc) -> str:
        """The key's text. Halves of characters, which pydantic would end at, are a problem and are replaced."""
        name = _HALF.sub("\N{REPLACEMENT CHARACTER}", key.value)
        if name != key.value:
            self._problem(key, (*loc, name), "half a character (a lone surrogate); write the character itself")
        return name

    def _scalar(self, node: yaml.ScalarNode, loc: Loc) -> object:
        text, tag = str(node.value), node.tag.removeprefix(_TAG)
        if tag == "null":
            self._problem(node, loc, "nothing is given here; give a value or leave the name out")
            return None
        if tag == "bool" and text.lower() in ("true", "false"):
            return text.lower() == "true"
        if tag == "int" and re.fullmatch(r"[-+]?[0-9]+", text, re.ASCII):
            # Python refuses to convert thousands of digits; any figure this long is out of every bound.
            return int(text) if len(text) <= 18 else int(f"{text[0] if text[0] in '-+' else ''}{10**18}")
        if tag == "float" and re.fullmatch(r"[-+.0-9eE]+", text, re.ASCII):
            return float(text)
        if tag not in ("str", "merge"):
            self._problem(node, loc, "tags are not allowed; text that begins with ! needs quotes")
            return text
        return self._expand(text, node, loc) if "${" in text else text

    def _expand(self, text: str, node: yaml.Node, loc: Loc) -> str:
        def value(match: re.Match[str]) -> str:
            if match[0] == "$${":
                return "${"
            if match[1] is None:
                self._problem(node, loc, "expected ${NAME} or ${NAME:-default}; write $${ for a plain ${")
                return ""
            if "${" in (match[2] or ""):
                self._problem(node, loc, f"the default of {match[1]} is plain text; it cannot hold ${{...}} of its own")
                return ""
            found = self._env.get(match[1])
            if match[2] is not None:
                return found or match[2]
            if found is None:
                self._problem(node, loc, f"environment variable {match[1]} is not set")
            return found or ""

        return Expanded(_VARIABLE.sub(value, text))


def _mark(node: yaml.Node) -> Mark:
    return (node.start_mark.line + 1, node.start_mark.column + 1)
