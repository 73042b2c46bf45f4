"""Finds the overrides that a script passes to VeRL's trainer, by running it in the sandbox with stand-ins for
programs.

Some inputs of a script are unknown here: arguments, variables that it does not set, the output of programs,
and whether files exist. Therefore the script is run in several worlds, which differ in just these inputs. A
value that is the same in all worlds is known; any other is reported with the input that it depends on.

Not here: the sandbox (prepared/sandbox/shell), where a value goes (placing.py).
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

from llmzero_ray.errors import ConfigError, TaskError
from llmzero_ray.prepared.sandbox.shell import Prints, ScriptRun, ShellScript, World, load_script, run_shell
from llmzero_ray.utils.text import number_ranges, one_line, plural
from llmzero_ray.verl_script.commands import TRAINER, TrainerCommand, commands_of, own_configuration

_COMMENT = re.compile(r"\s*#")
_GOES_ON = re.compile(r"""\s*(["']?\$|["']?[+~]*[\w.]+=|-|\d?>|\|)""")
"""Beginning of a line that continues a command: an override, a variable, an option, a redirection, a pipe."""
_AFTER_BACKSLASH = re.compile(r"(?<=\s)\\[ \t]+(#.*)?$")
_READ = re.compile(r"\$\{?#?([A-Za-z_]\w*)")
_IN_ARITHMETIC = re.compile(r"\(\((.*?)\)\)", re.S)
_WITH_DEFAULT = re.compile(r"\$\{([A-Za-z_]\w*|[1-9]):?[-=](?!\})")
_ASSIGNED = re.compile(r"(?:^|[\s;(])([A-Za-z_]\w*)\+?=")
_TESTED_EMPTY = re.compile(r"""-z\s+"?\$\{?([A-Za-z_]\w*|[1-9])""")
_ARGUMENT = re.compile(r"\$\{?([1-9])\b")
_COUNTED = re.compile(r"""\$\{?#\}?"?\s*(?:-(?:ne|lt|eq|ge|gt|le)|[=!<>]=?)\s*"?(\d)""")
_BASH_SETS = re.compile(
    r"BASH\w*|HOME|PWD|OLDPWD|PATH|IFS|PS\d|LD_\w+|UID|EUID|PPID|RANDOM|SECONDS|LINENO|FUNCNAME|HOSTNAME|OPT\w+"
    r"|REPLY|SHELL|SHELLOPTS|SHLVL|TERM|TMPDIR|LANG|LC_\w+|OSTYPE|PIPESTATUS|EPOCH\w+|LLMZERO_\w+|_"
)
_WORD = r"""["']?[*^(]*([A-Za-z][\w.-]*)"""
_COMPARED = (
    re.compile(rf"\[\[?\s[^\n]*?(?:==?|!=|=~)\s*{_WORD}"),
    re.compile(rf"grep\s+(?:-\w+\s+)*{_WORD}"),
    re.compile(rf"(?:^|;;|\bin|\|)[ \t]*\(?{_WORD}\*?[\"']?(?=[|)])", re.M),
)
"""Patterns of the words that a test, a `grep` and a branch of a `case` look for."""
_CHANGING = re.compile(r"\b(S?RANDOM|EPOCH\w+|SECONDS|BASHPID|PPID|E?UID|mktemp)\b|\$\$")
"""Pattern of variables and commands whose values differ from run to run."""
_MARK = re.compile(r"llmzero([vap])(\d+)q", re.I)
_NUMBERS = (3, 4099)
_MOST_NAMED, _MOST_COMPARED = 3, 8
_AGAIN = 12
"""Number of further runs of a script with random numbers, because two runs often draw the same one."""
_PATIENCE_S = 30.0
"""Seconds after which no further world is tried if the script has not started a trainer."""


@dataclass
class Script:
    """The trainer's overrides in the order of the command, and remarks on parts that could not be read."""

    overrides: dict[str, str] = field(default_factory=dict)
    """VeRL's key -> value as text. If it is given several times, the last one."""
    unknown: dict[str, tuple[str, str]] = field(default_factory=dict)
    """VeRL's key -> (override as in the script, reason why its value is not known)."""
    own: dict[str, str] = field(default_factory=dict)
    """Settings of the script's own configuration file that no override replaces."""
    remarks: list[str] = field(default_factory=list)
    partly: bool = False
    """Whether some settings are in a file that could not be read."""
    megatron: str = ""
    """Option that selects VeRL's Megatron configuration. Empty if there is none."""


def read_script(path: Path) -> Script:
    """Overrides that a script passes to VeRL's trainer, without arguments or outside variables.

    Raises:
        ConfigError: the script cannot be read or run here, or starts no trainer with overrides.
    """
    text, remarks = _text(path)
    script = load_script(path, text)
    try:
        return _Reader(script).found(remarks)
    except TaskError as error:
        raise ConfigError(f"{path}: {error}") from error


def _text(path: Path) -> tuple[str, list[str]]:
    """(text of the script, remarks). Line endings, comments and spaces that would make bash end the command
    too early are removed."""
    try:
        held = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror}).") from error
    if b"\0" in held:
        raise ConfigError(f"{path}: is not text; give the script that starts VeRL's trainer.")
    given = held.decode("utf-8-sig", "surrogateescape").replace("\r\n", "\n").split("\n")
    lines, comments, others = list[str](), list[int](), list[int]()
    for number, raw in enumerate(given, 1):
        inside = bool(lines) and lines[-1].endswith("\\") and not _COMMENT.match(lines[-1])
        if inside and _COMMENT.match(raw):
            after = next((line for line in given[number:] if not _COMMENT.match(line)), "")
            if _GOES_ON.match(after):
                comments.append(number)
                continue
        if not _COMMENT.match(raw) and _AFTER_BACKSLASH.search(raw):
            raw = _AFTER_BACKSLASH.sub(r"\\", raw)
            others.append(number)
        lines.append(raw)
    return "\n".join(lines) + "\n", [
        f"{_lines(numbers)}: {what} was left out; bash may end the command there"
        for numbers, what in ((comments, "a comment inside of a command"), (others, "what follows the \\"))
        if numbers
    ]


def _lines(numbers: list[int]) -> str:
    return f"{'line' if len(numbers) == 1 else 'lines'} {number_ranges(numbers)}"


# --- worlds -------------------------------------------------------------------------------------------------


class _Reader:
    """Runs one script in its worlds."""

    def __init__(self, script: ShellScript) -> None:
        self._script = script
        self._seen: dict[str, ScriptRun] = {}
        self._shown: dict[str, str] = {}
        """Key -> override as text, in which marks replace unknown parts."""
        self._branching: list[str] = []
        """Keys whose values depend on a variable or argument that the script does not set."""
        mentioned = [text for place, text in script.files.items() if Path(place).name in script.text]
        self._text = "\n".join([script.text, *mentioned])

    def found(self, remarks: list[str]) -> Script:
        """The script's overrides; for each unknown one, the reason."""
        base = self._base()
        command, *further = commands_of(self.seen(base).starts)
        made = Script(remarks=remarks)
        given = command.overrides
        worlds = [world for world in self._all(self._worlds(base)) if self._command(world) is not None]
        self._all(self._given_worlds(base))
        keys = dict.fromkeys([*given, *(key for world in worlds for key in self._given(world))])
        for key in keys:
            reason = self._reason(key, base, worlds)
            if reason is not None:
                made.unknown[key] = (self._plain(self._shown.get(key) or key), reason)
            elif key in given:
                made.overrides[key] = given[key]
        for word in command.others:
            if not _MARK.search(word):
                made.remarks.append(
                    f"{word}: {'deletes a key' if word[0] == '~' else 'is not an override KEY=VALUE'}"
                )
        made.remarks += [*self._other_commands(command, further), *self._unset_branches(base)]
        if command.module and not command.module.endswith("main_ppo") and command.module != "main_ppo.py":
            made.remarks.append(
                f"the script starts {command.module}: what that does beyond {TRAINER}, a search does not do"
            )
        if base.goes_on:
            made.remarks.append("the script ends before the trainer starts; it was read as if it continued")
        sources = self.seen(base).sources
        if sources:
            made.remarks.append(
                f"{', '.join(map(self._plain, sources))}: was not read; what it sets is not known"
            )
        own = own_configuration(command, self._script.path.resolve().parent)
        made.partly, made.megatron = not own.read, own.megatron
        made.own = {key: text for key, text in own.settings.items() if key not in keys}
        made.remarks += [self._plain(own.remark)] if own.remark else []
        if not made.overrides and not made.unknown and not made.own:
            raise ConfigError(
                f"{self._script.path}: the trainer was found in it ({command.module}), but no override. Give "
                "the script in which the overrides KEY=VALUE stand."
            )
        return made

    def _base(self) -> World:
        """World from which values are read: without variables and arguments, with programs that print
        nothing, or else the next world in which the trainer starts."""
        bare = World()
        given = [*self._variable_worlds(bare, tested=False), *self._variable_worlds(bare, tested=True)]
        marked = given[:1] + given[3:4]
        kinds: tuple[Prints, ...] = ("", "text", "large", "fails")
        others = [
            replace(world, prints=kind, files_there=there)
            for there in (False, True)
            for world in (bare, *marked)
            for kind in kinds
            if kind or there
        ]
        at_last = [
            replace(world, files_there=there, goes_on=True)
            for there in (False, True)
            for world in (bare, *marked)
        ]
        until = time.monotonic() + _PATIENCE_S
        for world in (bare, *given, *others, *at_last):
            if self._command(world) is not None:
                return world
            if time.monotonic() > until:
                break
        said = [line for line in self.seen(bare).said.splitlines() if "syntax error" in line]
        why = f" bash says: {one_line(said[0])}" if said else ""
        raise ConfigError(
            f"{self._script.path}: no command `python -m {TRAINER} ...` was found in it. Give the script "
            f"that starts VeRL's trainer, with its overrides written in it.{why}"
        )

    def _variable_worlds(self, base: World, *, tested: bool) -> tuple[World, ...]:
        """Three worlds that set all variables without a default and all arguments: one sets them to marks,
        two to numbers. Inputs that the script tests for being empty are set only if `tested`."""
        kept = set() if tested else set(_TESTED_EMPTY.findall(self._text))
        names = [name for name in self._variables if name not in kept]
        given = [i for i in range(1, self._n_arguments + 1) if str(i) not in kept | self._defaulted]
        typed = re.search(r"\bread\b", self._text) is not None
        if not names and not given and not typed:
            return ()

        def world(value: Callable[[str, int], str]) -> World:
            return replace(
                base,
                variables={name: value("v", self._variables.index(name)) for name in names},
                typed=value("a", 0) if typed else "",
                arguments=tuple(
                    value("a", i) if i in given else "" for i in range(1, max(given, default=0) + 1)
                ),
            )

        numbers = (world(lambda _, __, n=n: str(n)) for n in _NUMBERS)  # type: ignore[misc]
        return (world(lambda kind, i: f"llmzero{kind}{i}q"), *numbers)

    def _given_worlds(self, base: World) -> list[World]:
        """Worlds in which variables and arguments are set. Inputs that the script tests for being empty are
        set only if the trainer does not start otherwise."""
        for tested in (False, True):
            worlds = list(self._variable_worlds(base, tested=tested))
            if any(self._command(world) for world in worlds):
                return worlds
        return []

    def _worlds(self, base: World) -> list[World]:
        """Worlds that reveal dependencies on programs and files."""
        worlds = list[World]()
        seen = self.seen(base)
        if seen.programs:
            kinds: tuple[Prints, ...] = ("text", "number", "large", "") if seen.reads_programs else ()
            worlds += [replace(base, prints=kind) for kind in ("fails", *kinds) if kind != base.prints]
        if seen.reads_programs:
            worlds += [replace(base, prints="says", says=text) for text in self._compared()]
        if _CHANGING.search(self._text):
            worlds += [
                replace(base, variables={**base.variables, "LLMZERO_AGAIN": str(n)}) for n in range(_AGAIN)
            ]
        if any(self.seen(world).files for world in [base, *worlds]):
            worlds.append(replace(base, files_there=not base.files_there))
        return worlds

    def _compared(self) -> list[str]:
        """Words with which the script compares texts, and which a program may therefore print."""
        code = re.sub(r"(^|\s)#.*", "", self._text)
        cases = "\n".join(re.findall(r"\bcase\b.*?\besac\b", code, re.S))
        tests, greps, branches = _COMPARED
        words = [*tests.findall(code), *greps.findall(code), *branches.findall(cases)]
        return list(dict.fromkeys(words))[:_MOST_COMPARED]

    @cached_property
    def _defaulted(self) -> set[str]:
        return set(_WITH_DEFAULT.findall(self._text))

    @cached_property
    def _variables(self) -> list[str]:
        """Variables that the script reads without a default."""
        arithmetic = " ".join(_IN_ARITHMETIC.findall(self._text))
        names = [*_READ.findall(self._text), *re.findall(r"(?<![\w$])[A-Za-z_]\w*", arithmetic)]
        assigned = {*_ASSIGNED.findall(self._text), *re.findall(r"\$\{(\w+):?=", self._text)}
        kept = self._defaulted & assigned | self._defaulted - set(
            re.findall(r"\$\{?(\w+)(?!\w|:?-)", self._text)
        )
        return [name for name in dict.fromkeys(names) if name not in kept and not _BASH_SETS.fullmatch(name)]

    @cached_property
    def _n_arguments(self) -> int:
        counts = [int(n) for n in (*_ARGUMENT.findall(self._text), *_COUNTED.findall(self._text))]
        return max(counts, default=0)

    def seen(self, world: World) -> ScriptRun:
        """What the script does in a world. Each world is run only once."""
        key = repr(world)
        if key not in self._seen:
            self._seen[key] = run_shell(self._script, world)
        return self._seen[key]

    def _all(self, worlds: list[World]) -> list[World]:
        """Run the script in each world, in parallel. Returns the worlds."""
        with ThreadPoolExecutor(max_workers=4) as threads:
            list(threads.map(self.seen, worlds))
        return worlds

    def _command(self, world: World) -> TrainerCommand | None:
        return next(iter(commands_of(self.seen(world).starts)), None)

    def _given(self, world: World) -> Mapping[str, str]:
        command = self._command(world)
        return {} if command is None else command.overrides

    def _value(self, world: World, key: str) -> str | None:
        return self._given(world).get(key)

    # --- reasons --------------------------------------------------------------------------------------------

    def _reason(self, key: str, base: World, worlds: Sequence[World]) -> str | None:
        """Reason why the value of an override is not known, or None if it is known."""
        value = self._value(base, key)
        if value is not None:
            self._shown[key] = f"{key}={value}"
        marks = _MARK.findall(value or "")
        if marks:
            return self._of_mark(*marks[0])
        for world in worlds:
            if self._value(world, key) != value:
                return self._deciding(key, base, world)
        if value is None:
            return None
        if (name := self._made_of(key, base, value)) is not None:
            return name
        return None if value else "it is empty in the script"

    def _made_of(self, key: str, base: World, value: str) -> str | None:
        """Sentence about the unset inputs that a value is made of, or None if there are none."""
        worlds = self._given_worlds(base)
        if not worlds:
            return None
        marked, *numbers = worlds
        shown = self._value(marked, key)
        for kind, number in dict.fromkeys(_MARK.findall(shown or "")):
            # Set one input at a time, because another one may change the value without being part of it.
            one = self._value(self._only(marked, kind, int(number)), key) or ""
            if _MARK.search(one) and _MARK.sub("", one) == value:
                self._shown[key] = f"{key}={one}"
                return self._of_mark(kind, number)
        values = {self._value(world, key) for world in numbers if self._command(world) is not None}
        same = shown == value or (shown is None and self._command(marked) is None)
        if same and len(values) > 1:
            return f"it is computed from {_listed(self._unset(marked))}, not set in the script"
        if self._command(marked) is not None and shown != value:
            self._branching.append(key)
        return None

    def _only(self, world: World, kind: str, number: int) -> World:
        """The world with only one of its variables or arguments."""
        if kind.lower() == "v":
            name = self._variables[number]
            return replace(world, variables={name: world.variables[name]}, arguments=(), typed="")
        arguments = tuple(text if i == number else "" for i, text in enumerate(world.arguments, 1))
        typed = "" if number else world.typed
        return replace(world, variables={}, arguments=arguments, typed=typed)

    def _unset(self, marked: World) -> list[str]:
        """Names of the variables and arguments that this world sets but the script does not."""
        arguments = (f"${i}" for i, text in enumerate(marked.arguments, 1) if text)
        own = set(_ASSIGNED.findall(self._text))
        return [*(name for name in marked.variables if name not in own), *arguments]

    def _of_mark(self, kind: str, number: str) -> str:
        match kind.lower():
            case "v":
                return f"{self._variables[int(number)]} is not set in the script"
            case "a":
                return (
                    f"${number} is an argument of the script"
                    if number != "0"
                    else "it is typed in as the script runs"
                )
        return f"it is what `{self._program(f'llmzerop{number}q')}` prints"

    def _unset_branches(self, base: World) -> Iterator[str]:
        """Remark on keys whose values may differ if unset variables or arguments are set."""
        if keys := self._branching:
            more = f" and {len(keys) - 3} more" if len(keys) > 3 else ""
            names = _listed(self._unset(self._given_worlds(base)[0]))
            yield (
                f"{', '.join(keys[:3])}{more}: as where the script's variables and arguments are not set "
                f"({names}); it may have another value where they are"
            )

    def _program(self, mark: str) -> str:
        return next(
            (seen.programs[mark] for seen in self._seen.values() if mark in seen.programs), "a program"
        )

    def _deciding(self, key: str, base: World, world: World) -> str:
        """Reason, as text, why an override differs between two worlds."""
        shown = self._value(world, key)
        marks = [each for each in _MARK.findall(shown or "") if each[0].lower() == "p"]
        if marks:
            self._shown[key] = f"{key}={shown}"
            return self._of_mark(*marks[0])
        if world.prints == base.prints and world.files_there == base.files_there:
            return "it changes from run to run"
        seen = [self.seen(world), self.seen(base)]
        if world.files_there != base.files_there:
            files = [self._plain(name) for one in seen for name in one.files]
            return f"it depends on whether {_listed(files)} is there"
        programs = [f"`{name}`" for one in seen for name in one.programs.values()]
        return f"it depends on what {_listed(programs)} prints"

    def _plain(self, text: str) -> str:
        """The text with marks replaced by what they stand for."""

        def name(found: re.Match[str]) -> str:
            match found[1].lower():
                case "v":
                    return f"${self._variables[int(found[2])]}"
                case "a":
                    return f"${found[2]}" if found[2] != "0" else "(typed)"
            return f"$({self._program(found[0].lower())})"

        return _MARK.sub(name, re.sub(rf"({_MARK.pattern})(?: \1)+", r"\1", text, flags=re.I))

    def _other_commands(self, first: TrainerCommand, further: Sequence[TrainerCommand]) -> Iterator[str]:
        if not further:
            return
        changed = list[str]()
        for command in further:
            other, own = command.overrides, first.overrides
            changed += [f"{key}={other[key]}" for key in other if own.get(key) != other[key]]
            changed += [f"no {key}" for key in own if key not in other]
        several = list(dict.fromkeys(map(self._plain, changed)))
        if not several:
            yield "the script starts the trainer more than once, with the same overrides"
            return
        differ = ", ".join(several[:6]) + (", ..." if len(several) > 6 else "")
        yield (
            f"the script starts the trainer {plural(len(further), 'further time')}; the first command was "
            f"read, the others differ in {differ}"
        )


def _listed(names: Iterable[str]) -> str:
    """Up to three distinct names, joined by `or`."""
    found = list(dict.fromkeys(names))
    return " or ".join(found[:_MOST_NAMED]) + (" or others" if len(found) > _MOST_NAMED else "")
