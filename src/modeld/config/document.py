"""YAML text into plain values, each with its line and column. YAML 1.2; nothing in a file is ever run."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from modeld.errors import ConfigError

if TYPE_CHECKING:
    from ruamel.yaml.error import YAMLError
    from ruamel.yaml.nodes import Node

Path_: TypeAlias = tuple[str | int, ...]
Place: TypeAlias = tuple[int, int]

MOST_VALUES = 50_000
"""Most values one file may hold once its aliases are followed: a few kilobytes can ask for billions."""

MOST_DEPTH = 60
"""Deepest nesting; the schema itself needs five levels."""

_TAG = "tag:yaml.org,2002:"


class Document:
    """One parsed file: `data` (None when the file is empty) and where each value stands."""

    def __init__(self, text: str, file: Path) -> None:
        """Parse. Raises ConfigError with the place of the mistake."""
        from ruamel.yaml import YAML
        from ruamel.yaml.error import YAMLError

        self._file = file
        self._keys: dict[Path_, Place] = {}
        self._values: dict[Path_, Place] = {}
        self._count = 0
        yaml = YAML(typ="safe", pure=True)
        yaml.max_depth = MOST_DEPTH
        yaml.composer.warn_double_anchors = False  # YAML allows it; the latest one counts
        try:
            root = yaml.compose(text)
        except YAMLError as error:
            # No chaining: ruamel's own message quotes the line, and the line may hold a key.
            raise self._syntax_error(error, text) from None
        self._construct = yaml.constructor
        self.data: Any = None if root is None else self._read(root, (), ())

    def place(self, path: Path_, *, key: bool = False) -> Place:
        """Return line and column (from 1) of the value at `path`, or of its key; else of what holds it."""
        places = [self._keys, self._values] if key else [self._values]
        while path:
            for known in places:
                if path in known:
                    return known[path]
            path = path[:-1]
        return self._values.get((), (1, 1))

    def _error(self, message: str, node: Node) -> ConfigError:
        line, column = _mark(node)
        return ConfigError(message, file=self._file, line=line, column=column)

    def _syntax_error(self, error: YAMLError, text: str) -> ConfigError:
        mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
        if mark is not None:
            problem = getattr(error, "problem", None) or getattr(error, "context", None) or "not YAML"
            if "alias" in problem or "anchor" in problem or "tag" in problem:
                problem = re.sub(r"\s*['\"].*", "", problem, flags=re.DOTALL)
            if "maximum depth" in problem:
                problem = f"nested more than {MOST_DEPTH} levels deep"
            if problem == "but found another document":
                problem = "a second document begins here; one file holds one document"
            return ConfigError(
                f"not YAML: {problem}", file=self._file, line=mark.line + 1, column=mark.column + 1
            )
        position = getattr(error, "position", None)
        if position is not None:
            before = text[:position]
            return ConfigError(
                f"the character #x{getattr(error, 'character', 0):04x} is not allowed in YAML",
                file=self._file,
                line=before.count("\n") + 1,
                column=position - before.rfind("\n"),
            )
        return ConfigError("not YAML", file=self._file)

    def _read(self, node: Node, path: Path_, above: tuple[int, ...]) -> Any:
        from ruamel.yaml.nodes import MappingNode, ScalarNode, SequenceNode

        self._count += 1
        if self._count > MOST_VALUES:
            raise self._error(f"more than {MOST_VALUES} values once the aliases are followed", node)
        if len(above) > MOST_DEPTH:
            raise self._error(f"nested more than {MOST_DEPTH} levels deep", node)
        if id(node) in above:
            raise self._error("an alias that stands inside what it names", node)
        above = (*above, id(node))
        self._values[path] = _mark(node)
        tag = str(node.tag or "").removeprefix(_TAG)
        if isinstance(node, ScalarNode):
            return self._scalar(node, tag)
        if isinstance(node, SequenceNode) and tag == "seq":
            return [self._read(item, (*path, index), above) for index, item in enumerate(node.value)]
        if isinstance(node, MappingNode) and tag == "map":
            return self._mapping(node, path, above)
        raise self._error("tags (!…) other than YAML's own plain ones are not read", node)

    def _scalar(self, node: Any, tag: str) -> Any:
        text: str = node.value
        if tag in ("str", "timestamp", "value", "merge"):
            return text
        try:
            match tag:
                case "null":
                    return None
                case "bool":
                    return self._construct.construct_yaml_bool(node)
                case "int":
                    return self._construct.construct_yaml_int(node)
                case "float":
                    return self._construct.construct_yaml_float(node)
        except (ValueError, KeyError, OverflowError):
            raise self._error(f"this is not a value of the kind !!{tag}", node) from None
        raise self._error("tags (!…) other than YAML's own plain ones are not read", node)

    def _mapping(self, node: Any, path: Path_, above: tuple[int, ...]) -> dict[str, Any]:
        from ruamel.yaml.nodes import MappingNode, ScalarNode, SequenceNode

        own: dict[str, Any] = {}
        merged: list[Any] = []
        for key_node, value_node in node.value:
            if not isinstance(key_node, ScalarNode):
                raise self._error("a key is plain text", key_node)
            key: str = key_node.value
            if str(key_node.tag) == _TAG + "merge":
                merged += value_node.value if isinstance(value_node, SequenceNode) else [value_node]
                continue
            if key in own:
                name = "this key" if "api_keys" in path else f"the key {key!r}"
                line, _ = self._keys[(*path, key)]
                raise self._error(f"{name} is already set in line {line}; remove one of them", key_node)
            self._keys[(*path, key)] = _mark(key_node)
            own[key] = self._read(value_node, (*path, key), above)
        for source in merged:
            if not isinstance(source, MappingNode):
                raise self._error("<< takes a mapping, or a list of mappings", source)
            # Read where it will stand, so that its places are known; what is written here itself wins.
            kept_keys, kept_values = dict(self._keys), dict(self._values)
            for key, value in self._read(source, path, above).items():
                own.setdefault(key, value)
            self._keys.update(kept_keys)
            self._values.update(kept_values)
        return own


def _mark(node: Node) -> Place:
    return node.start_mark.line + 1, node.start_mark.column + 1
