"""Strict settings read from YAML: their base class, YAML in and out, pydantic's findings in plain words."""

from __future__ import annotations

import re
import sys
import types
from collections.abc import Hashable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias, TypeVar, Union, get_args, get_origin
from urllib.parse import unquote

import yaml
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from llmzero_ray.errors import ConfigError
from llmzero_ray.utils.text import collapse_whitespace, nearest, one_line

Model = TypeVar("Model", bound=BaseModel)


PLUGIN = r"^([A-Za-z_][\w-]*|[A-Za-z_][\w.]*:[A-Za-z_]\w*)$"
"""A name of this project or of an entry point, or `package.module:factory`."""


def setting(default: Any, unit: str = "", **bounds: Any) -> Any:
    """A field with the unit that error messages name."""
    return Field(default, json_schema_extra={"unit": unit} if unit else None, **bounds)


AS_TUPLE = BeforeValidator(lambda value: tuple(value) if isinstance(value, list) else value)
"""Makes a list of a file a tuple, which a strict model asks for."""


class StrictModel(BaseModel):
    """A part of a file: frozen, typed strictly, unknown keys refused."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, use_attribute_docstrings=True, allow_inf_nan=False
    )


_MAX_VALUES = 100_000
"""Maximum values of a text with aliases: a few lines of aliases can expand to billions."""
_MAX_BITS = 10_000
"""Maximum bits of an integer. Python prints no more than 14,000."""
_MOST_UNKNOWN = 5
"""Unknown keys at the top of a file that are named one by one."""
_MAX_GIVEN = 300
"""Maximum characters of a wrong value in a message."""


_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/+")
_WINDOWS = re.compile(r"[A-Za-z]:[\\/]|\\\\")
OBJECT_STORES = ("s3", "gs", "gcs", "az", "abfs", "abfss")
"""Schemes of the addresses that a journal can have."""


def local_path(given: str) -> str:
    """The given path, if it is on a file system; `file:///dir` becomes /dir.

    pathlib takes s3://bucket for a directory `s3:` below the current one.

    Raises:
        ConfigError: it is another address, or a Windows path.
    """
    if _WINDOWS.match(given):
        raise ConfigError(f"{given} is a Windows path; must be a path on this machine, such as /data/runs.")
    found = _SCHEME.match(given)
    if found is None:
        return given
    scheme, rest = found[1].lower(), given[found.end() :]
    if scheme == "file" and len(found[0]) - len("file:") in (1, 3):  # file:/dir and file:///dir
        return "/" + unquote(rest)
    shown = found[0] + rest.rpartition("@")[2]  # without keys
    hint = " Only the journal can be in an object store: `journal: s3://bucket/prefix`."
    raise ConfigError(
        f"{shown} is an address; must be a path on a file system that every node sees, such as a shared or "
        f"mounted directory.{hint if scheme in (*OBJECT_STORES, 's3a') else ''}"
    )


def expanded(path: str | Path) -> Path:
    """The path with the home directory that `~` or `~USER` stands for.

    Raises:
        ConfigError: there is no such user.
    """
    try:
        return Path(path).expanduser()
    except RuntimeError as error:
        raise ConfigError(
            f"{path} begins with the home directory of a user who does not exist here; write the whole path."
        ) from error


LocalPath: TypeAlias = Annotated[str, AfterValidator(local_path)]
"""A path on a file system; addresses are refused."""


class _Loader(yaml.SafeLoader):
    """Safe YAML that reads 1e-3 as a number (as YAML 1.2 does) and rejects duplicate keys, and aliases that
    contain themselves or expand too much."""

    def get_single_node(self) -> Any:
        node = super().get_single_node()
        if node is None:
            return None
        n_values, n_written = _n_values(node, {}, set())
        if n_values > max(_MAX_VALUES, n_written):
            raise yaml.constructor.ConstructorError(
                None, None, f"its aliases stand for more than {_MAX_VALUES} values", node.start_mark
            )
        return node

    def construct_scalar(self, node: Any) -> Any:
        value = super().construct_scalar(node)
        if isinstance(value, str) and "\0" in value:
            raise yaml.constructor.ConstructorError(
                None, None, "a value holds the character NUL", node.start_mark
            )
        return value

    def construct_yaml_int(self, node: Any) -> int:
        value: int = super().construct_yaml_int(node)
        if value.bit_length() > _MAX_BITS:
            raise yaml.constructor.ConstructorError(
                None, None, f"a whole number has more than {_MAX_BITS} bits", node.start_mark
            )
        return value

    def __init__(self, stream: Any) -> None:
        super().__init__(stream)
        self._flat: set[yaml.Node] = set()

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        # Also called for the mappings that `<<` names, perhaps before they are read themselves.
        if node not in self._flat:
            self._flat.add(node)
            self._check_keys(node)
            super().flatten_mapping(node)

    def _check_keys(self, node: yaml.MappingNode) -> None:
        seen: set[Any] = set()
        for key_node, _ in node.value:
            is_merge = key_node.tag == "tag:yaml.org,2002:merge"
            key = "<<" if is_merge else self.construct_object(key_node, deep=True)
            if not isinstance(key, Hashable):
                raise yaml.constructor.ConstructorError(
                    None, None, "a key is a list or a mapping; it must be a name", key_node.start_mark
                )
            if key in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {key!r} is given twice", key_node.start_mark
                )
            seen.add(key)


def _n_values(node: Any, known: dict[int, int], above: set[int]) -> tuple[int, int]:
    """(number of values of a node with its aliases expanded, number without).

    Raises:
        ConstructorError: it contains itself.
    """
    if id(node) in above:
        raise yaml.constructor.ConstructorError(None, None, "an alias contains itself", node.start_mark)
    if id(node) not in known:
        below: list[Any] = node.value if isinstance(node, yaml.CollectionNode) else []
        parts = [part for one in below for part in (one if isinstance(one, tuple) else (one,))]
        above.add(id(node))
        known[id(node)] = 1 + sum(_n_values(part, known, above)[0] for part in parts)
        above.remove(id(node))
    return known[id(node)], len(known)


class _Dumper(yaml.SafeDumper):
    """Safe YAML that `_Loader` reads back as the same data; texts of several lines stay readable."""

    def represent_text(self, value: str) -> yaml.ScalarNode:
        # PyYAML loses these line ends in any style that does not write them as escapes.
        style = '"' if re.search("[\x85\u2028\u2029]", value) else "|" if "\n" in value else None
        return self.represent_scalar("tag:yaml.org,2002:str", value, style=style)


_Loader.add_constructor("tag:yaml.org,2002:int", _Loader.construct_yaml_int)
_Dumper.add_representer(str, _Dumper.represent_text)
for _either in (_Loader, _Dumper):  # the dumper quotes a text such as 83e72937, the id of a trial
    _either.add_implicit_resolver(
        "tag:yaml.org,2002:float",
        re.compile(r"^[-+]?(\d[\d_]*\.?[\d_]*|\.\d[\d_]*)[eE][-+]?\d+$"),
        list("-+0123456789."),
    )


def read_yaml(source_or_text: Path | str, *, source: str | None = None) -> Any:
    """The data of a file (always a mapping) or of a one-line text (any value).

    Raises:
        ConfigError: the file is missing or unreadable, is not a mapping, or its YAML is broken (line and
        column are given).
    """
    if isinstance(source_or_text, str):
        return _parse(source_or_text, source or "text")
    path, name = Path(local_path(str(source_or_text))), source_or_text.name
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror}).") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: is not UTF-8 text ({error.reason} at byte {error.start}).") from error
    data = _parse(text, name)
    if not isinstance(data, dict):
        found = "nothing" if data is None else "a list" if isinstance(data, list) else "one value"
        raise ConfigError(f"{name}: holds {found}; must hold YAML keys and values, such as `name: demo`.")
    return data


def replace_key(data: dict[str, Any], keys: Sequence[str], value: Any) -> None:
    """Put `value` at a path of keys into `data`; blocks on the way that are missing or null are made.

    Raises:
        ConfigError: a key on the way holds a value that has no keys.
    """
    place, (*above, last) = data, keys
    for key in above:
        below = place.get(key)
        if below is not None and not isinstance(below, dict):
            found = one_line(repr(below), _MAX_GIVEN)
            raise ConfigError(f"{'.'.join(keys)} cannot be set: {key} is {found}, which has no keys")
        place[key] = dict(below or {})
        place = place[key]
    place[last] = value


def validated(model: type[Model], data: Any, source: str) -> Model:
    """`data` as a `model`; `source` opens the messages.

    Raises:
        ConfigError: everything that is wrong, one line each.
    """
    try:
        return model.model_validate(data)
    except ValidationError as error:
        raise ConfigError(_problems(error, model, source)) from error


def load_file(
    model: type[Model],
    path: Path,
    settings: Mapping[str, Any] | None = None,
    *,
    removed: Mapping[str, str] | None = None,
) -> Model:
    """A YAML file as a `model`, dotted keys replaced by `settings`; `removed` are the settings that went, as
    `refuse_removed` takes them.

    Raises:
        ConfigError: no such file, broken YAML, or everything that is wrong in it.
    """
    data = read_yaml(path)
    for key, value in (settings or {}).items():
        replace_key(data, key.split("."), value)
    refuse_removed(data, removed or {}, path.name)
    return validated(model, data, path.name)


def held_settings(names: Iterable[str], data: Mapping[str, Any]) -> list[str]:
    """The names, each a setting or `setting: value`, that the data of a file holds at its top or in a block
    there."""
    flat = {key: value for key, value in data.items() if "." not in str(key)}
    for block, values in data.items():
        if isinstance(values, Mapping):
            flat |= {f"{block}.{key}": value for key, value in values.items()}
    held = flat.keys() | {f"{name}: {value}" for name, value in flat.items()}
    return [name for name in names if name in held]


def refuse_removed(data: Mapping[str, Any], removed: Mapping[str, str], source: str) -> None:
    """Refuse settings that went. `removed` gives for each setting, or `setting: value`, why and what to do.

    Raises:
        ConfigError: the data holds some of them, one line each.
    """
    gone = [
        f"{source}: {name} does not exist since 0.2: {removed[name]}" for name in held_settings(removed, data)
    ]
    if gone:
        raise ConfigError("\n".join(gone))


def to_yaml(data: Mapping[str, Any]) -> str:
    """Plain data as YAML, in the order given; `read_yaml` gives the same data back."""
    return str(yaml.dump(dict(data), Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=100))


def _problems(error: ValidationError, model: type[BaseModel], source: str) -> str:
    """All findings of one validation, one line each, unknown keys first (they often explain the rest)."""
    found = error.errors()
    inner = {one["loc"][: len(one["loc"]) - k] for one in found for k in range(1, len(one["loc"]))}
    # A list is also called too short where its items are wrong.
    found = [one for one in found if one["type"] != "too_short" or one["loc"] not in inner]
    findings = sorted(found, key=lambda e: e["type"] != "extra_forbidden")
    unknown = [str(f["loc"][0]) for f in findings if f["type"] == "extra_forbidden" and len(f["loc"]) == 1]
    if len(unknown) > _MOST_UNKNOWN:  # another kind of file
        given, known = ", ".join(unknown), ", ".join(model.model_fields)
        return f"{source}: holds {given}, which are not keys of such a file. Its keys are {known}."
    lines = [f"{source}: {_describe(finding, model)}" for finding in findings]
    return "\n".join(dict.fromkeys(lines))


def _parse(text: str, source: str) -> Any:
    try:
        return yaml.load(text, Loader=_Loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f" at line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        raise ConfigError(f"{source}: broken YAML{where}: {error.problem or error.context}.") from error
    except yaml.YAMLError as error:
        raise ConfigError(f"{source}: broken YAML: {one_line(str(error), _MAX_GIVEN)}") from error
    except RecursionError as error:
        raise ConfigError(
            f"{source}: broken YAML: its blocks and lists are nested too deeply; a file "
            "of settings has a few levels."
        ) from error
    except (ValueError, TypeError, OverflowError) as error:  # a date or a number that Python cannot hold
        if "set_int_max_str_digits" in str(error):
            most = sys.get_int_max_str_digits()
            raise ConfigError(f"{source}: a whole number has more than {most} digits.") from error
        raise ConfigError(f"{source}: broken YAML: {one_line(str(error), _MAX_GIVEN)}.") from error


def _describe(finding: ErrorDetails, model: type[BaseModel]) -> str:
    path = [str(part) for part in finding["loc"]]
    owner, field = _find(model, path)
    if finding["type"] == "extra_forbidden":
        return _unknown_key(path, owner)
    if finding["type"] == "value_error":
        reason = str(finding.get("ctx", {}).get("error", finding["msg"]))
        return reason if not path or reason.startswith(path[0]) else f"{'.'.join(path)}: {reason}"
    dotted = ".".join(path[: _depth(model, path)]) or "the file"
    if field is None:
        return f"{dotted} is {_given(finding)}, which is not allowed there."
    allowed, block = allowed_values(field), _submodel(field)
    if block is not None and not isinstance(finding["input"], Mapping):
        allowed += f", such as {dotted}.{next(iter(block.model_fields))}"
    doc = collapse_whitespace(field.description or "")
    if finding["type"] == "missing":
        return f"{dotted} is missing; must be {allowed}. {doc}".rstrip()
    extra = field.json_schema_extra
    unit = f" ({extra['unit']})" if isinstance(extra, dict) and "unit" in extra else ""
    return f"{dotted} is {_given(finding)}{unit}; must be {allowed}. {doc}".rstrip()


def _given(finding: ErrorDetails) -> str:
    value = finding["input"]
    words = {"None": "null", "True": "true", "False": "false"}  # as the file has them
    return one_line(words.get(repr(value), repr(value)), _MAX_GIVEN)


def _unknown_key(path: list[str], owner: type[BaseModel] | None) -> str:
    known = list(owner.model_fields) if owner else []
    where = f" in {'.'.join(path[:-1])}" if len(path) > 1 else ""
    near = nearest(path[-1], known)
    hint = f"; did you mean {near!r}?" if near else "."
    return f"unknown key {path[-1]!r}{where}{hint} Known keys: {', '.join(known)}."


def _find(model: type[BaseModel], path: list[str]) -> tuple[type[BaseModel] | None, FieldInfo | None]:
    """The model that owns the last key of `path` and the field there, as far as they exist."""
    owner: type[BaseModel] | None = model
    field: FieldInfo | None = None
    for i, part in enumerate(path):
        if part.isdigit() and _item_model(field) is not None:
            continue  # the place in a list
        field = owner.model_fields.get(part) if owner else None
        below = _submodel(field) or _item_model(field)
        if i == len(path) - 1 or below is None:
            return owner, field
        owner = below
    return owner, field


def _depth(model: type[BaseModel], path: list[str]) -> int:
    """Number of leading parts of `path` that are keys of the file; pydantic appends names of union
    members."""
    depth, owner = 0, model
    field: FieldInfo | None = None
    for part in path:
        if part.isdigit() and _item_model(field) is not None:
            depth += 1
            continue
        field = owner.model_fields.get(part)
        if field is None:
            return depth
        depth += 1
        below = _submodel(field) or _item_model(field)
        if below is None:
            return depth
        owner = below
    return depth


def _submodel(field: FieldInfo | None) -> type[BaseModel] | None:
    """Settings model that a field holds (the field may also hold null), or None for a plain value."""
    members = _members(field.annotation) if field else ()
    blocks = [each for each in members if isinstance(each, type) and issubclass(each, BaseModel)]
    return blocks[0] if len(blocks) == 1 else None


def _item_model(field: FieldInfo | None) -> type[BaseModel] | None:
    """Settings model of a list's items, or None if the field is not a list of blocks."""
    item = get_args(field.annotation)[0] if field and get_origin(field.annotation) is tuple else None
    return item if isinstance(item, type) and issubclass(item, BaseModel) else None


_KINDS: dict[Any, str] = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}
_PATTERNS = {
    r"^[a-z0-9][a-z0-9_-]{0,62}$": "1 to 63 of a-z, 0-9, - and _, the first one a letter or digit",
    r"^[a-z0-9][a-z0-9_]{0,19}$": "1 to 20 of a-z, 0-9 and _, the first one a letter or digit",
    r"^([A-Za-z_][\w-]*|[A-Za-z_][\w.]*:[A-Za-z_]\w*)$": "a name or package.module:factory",
}


def allowed_values(field: FieldInfo) -> str:
    """Description of the values that a field accepts: `a whole number >= 2`, `one of auto, cpu, gpu`, `a
    number > 0 or null`."""
    members = _members(field.annotation)
    words = [_kind(member) for member in members if member is not type(None)]
    bounds = _bounds(field.metadata)
    text = " or ".join(dict.fromkeys(words)) + (f" {bounds}" if bounds else "")
    for item in field.metadata:
        text = _PATTERNS.get(getattr(item, "pattern", None) or "", text)
    return text + (" or null" if type(None) in members else "")


def _members(annotation: Any) -> tuple[Any, ...]:
    return get_args(annotation) if get_origin(annotation) in (Union, types.UnionType) else (annotation,)


def _kind(annotation: Any) -> str:
    if get_origin(annotation) is Annotated:  # a member of a union with bounds of its own
        member, *given = get_args(annotation)
        own = [item for each in given if isinstance(each, FieldInfo) for item in each.metadata]
        return f"{_kind(member)} {_bounds(own)}".rstrip()
    if get_origin(annotation) is Literal:
        choices = [str(choice) for choice in get_args(annotation)]
        return choices[0] if len(choices) == 1 else f"one of {', '.join(choices)}"
    if get_origin(annotation) is dict or (isinstance(annotation, type) and issubclass(annotation, BaseModel)):
        return "a block of keys and values"
    if get_origin(annotation) in (tuple, list):
        return "a list, such as [a, b]"
    return _KINDS.get(annotation, getattr(annotation, "__name__", "a value of another kind"))


def _bounds(metadata: Sequence[Any]) -> str:
    signs = {"ge": ">=", "gt": ">", "le": "<=", "lt": "<"}
    found = [
        f"{sign} {getattr(item, name):g}"
        if isinstance(getattr(item, name), float)
        else f"{sign} {getattr(item, name)}"
        for name, sign in signs.items()
        for item in metadata
        if getattr(item, name, None) is not None
    ]
    if any(getattr(item, "min_length", None) for item in metadata):
        found.append("that is not empty")
    return " and ".join(found)
