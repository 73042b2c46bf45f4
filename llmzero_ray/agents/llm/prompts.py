"""Prompts of the agents: packaged or user-supplied templates of prompts/, rendered from plain values.

Each agent has two templates. `<agent>.system.md.j2` uses only values that are constant during a search, so
that it can be cached. `<agent>.user.md.j2` also uses the values of each call. Values are inserted, never
compiled, and templates run in Jinja's sandbox.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from types import TracebackType
from typing import Any, TypeAlias

from llmzero_ray.agents.knowledge import (
    APPENDIX_F,
    HYPERPARAMETERS,
    METRICS,
    Knowledge,
    check_names,
    parse_appendix,
    parse_hyperparameters,
    parse_metrics,
    prompt_file,
)
from llmzero_ray.agents.llm.prompt_text import quote
from llmzero_ray.errors import ConfigError
from llmzero_ray.records.agents import AGENT_NAMES, AgentName
from llmzero_ray.utils.files import text_digest
from llmzero_ray.utils.text import nearest


def _templates(agent: AgentName) -> tuple[str, str]:
    return f"{agent}.system.md.j2", f"{agent}.user.md.j2"


TEMPLATES: tuple[str, ...] = tuple(name for agent in AGENT_NAMES for name in _templates(agent))
FILES: tuple[str, ...] = (*TEMPLATES, METRICS, HYPERPARAMETERS, APPENDIX_F)
"""Files that are read from a user's directory of prompts."""


@dataclass(frozen=True)
class Rendered:
    """Texts of one call."""

    system: str
    """System prompt, constant in all calls of one agent in one search, so that it can be cached."""
    user: str


@dataclass(frozen=True)
class Prompts:
    """All texts of one search, read once. Picklable."""

    texts: Mapping[str, str]
    """File name -> its text. The journal stores the texts."""
    origins: Mapping[str, str]
    """File name -> its origin, for messages."""

    @classmethod
    def load(cls, directory: str | None = None) -> Prompts:
        """Packaged prompts, replaced file by file by those in `directory`.

        Raises:
            ConfigError: the directory does not exist or holds a file that nothing reads, or a file is not
            UTF-8.
        """
        if directory is not None:
            check_names(directory, FILES)
        texts, origins = {}, {}
        for name in FILES:
            file = prompt_file(name, directory)
            origins[name] = str(file)
            try:
                texts[name] = file.read_text(encoding="utf-8")
            except (OSError, UnicodeDecodeError) as error:
                raise ConfigError(
                    f"{file} cannot be read: {error}; it must be a text file in UTF-8."
                ) from error
        return cls(texts=texts, origins=origins)

    @cached_property
    def hashes(self) -> Mapping[str, str]:
        """File name -> sha256 of its text, hexadecimal."""
        return {name: text_digest(text) for name, text in self.texts.items()}

    @cached_property
    def digest(self) -> str:
        """SHA-256 over all names and texts."""
        return text_digest("\n".join(f"{name} {self.hashes[name]}" for name in sorted(self.hashes)))

    @cached_property
    def knowledge(self) -> Knowledge:
        """Content of the YAML files.

        Raises:
            ConfigError: one of them is malformed.
        """
        return Knowledge(
            metrics=parse_metrics(self.texts[METRICS], self.origins[METRICS]),
            hyperparameters=parse_hyperparameters(self.texts[HYPERPARAMETERS], self.origins[HYPERPARAMETERS]),
            appendix=parse_appendix(self.texts[APPENDIX_F], self.origins[APPENDIX_F]),
        )

    def render(self, agent: AgentName, stable: Mapping[str, Any], call: Mapping[str, Any]) -> Rendered:
        """Texts of one call. `stable` has the values of the whole search, `call` those of this call. If both
        have a name, the user template sees the call's value.

        Raises:
            ConfigError: a template uses an undefined value; the message names file, line and variable.
        """
        system, user = _templates(agent)
        return Rendered(
            system=self._render(system, stable).strip() + "\n",
            user=self._render(user, {**stable, **call}).strip() + "\n",
        )

    def check(self) -> None:
        """Check all templates before a search starts.

        Every template is searched for unknown variables, and rendered with requests that reach its branches.

        Raises:
            ConfigError: a template cannot work; the message names file, line and variable.
        """
        from llmzero_ray.agents.llm.context_examples import example_contexts

        for agent in AGENT_NAMES:
            examples = example_contexts(agent, self.knowledge)
            system, user = _templates(agent)
            self._check_variables(system, set(examples[0][0]))
            self._check_variables(user, set(examples[0][0]) | set(examples[0][1]))
            for stable, call in examples:
                self.render(agent, stable, call)

    def _check_variables(self, name: str, known: set[str]) -> None:
        used = dict(_variables(self._environment(), name, self.texts[name], self.origins[name]))
        for variable, line in used.items():
            if variable not in known:
                near = nearest(variable, known)
                hint = f"did you mean {near}?" if near else f"known are {', '.join(sorted(known))}."
                raise ConfigError(f"{self.origins[name]}:{line}: unknown variable {variable!r}: {hint}")

    def _render(self, name: str, context: Mapping[str, Any]) -> str:
        import jinja2

        try:
            return str(self._environment().get_template(name).render(context))
        except jinja2.TemplateSyntaxError as error:
            raise _syntax(error, self.origins[name]) from error
        except (jinja2.TemplateError, ArithmeticError, LookupError, TypeError, ValueError) as error:
            place = f"{self.origins[name]}:{_line(error.__traceback__, self.origins[name])}"
            raise ConfigError(
                f"{place}: the template fails: {error}; compare it with the packaged prompt."
            ) from error

    def _environment(self) -> Any:
        return _environment(tuple(sorted(self.texts.items())), tuple(sorted(self.origins.items())))


Load: TypeAlias = Callable[[str], str | tuple[str, str, None] | None]
"""Callable: template name -> its text, alone or with the file name for tracebacks. None if there is no such
template."""


def template_environment(load: Load) -> Any:
    """`jinja2.Environment` for plain text, in Jinja's sandbox. A missing value is an error."""
    import jinja2
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    return ImmutableSandboxedEnvironment(
        loader=jinja2.FunctionLoader(load),
        undefined=jinja2.StrictUndefined,
        autoescape=False,
        trim_blocks=True,
        lstrip_blocks=True,
    )


@lru_cache(maxsize=8)
def _environment(texts: tuple[tuple[str, str], ...], origins: tuple[tuple[str, str], ...]) -> Any:
    sources, files = dict(texts), dict(origins)

    def load(name: str) -> tuple[str, str, None] | None:
        return (sources[name], files[name], None) if name in TEMPLATES else None

    environment = template_environment(load)
    environment.filters["quoted"] = _quoted
    return environment


def _quoted(text: object, label: str) -> str:
    """Template filter: untrusted text as a block of data."""
    return quote(str(text), label=label, max_lines=12, max_chars=1200, width=400)


def _variables(environment: Any, name: str, text: str, origin: str) -> Iterator[tuple[str, int]]:
    """External variables of a template, each with the line of its first use."""
    import jinja2
    from jinja2 import meta, nodes

    try:
        tree = environment.parse(text, name)
    except jinja2.TemplateSyntaxError as error:
        raise _syntax(error, origin) from error
    wanted = meta.find_undeclared_variables(tree) - set(environment.globals)
    lines: dict[str, int] = {}
    for node in tree.find_all(nodes.Name):
        if node.name in wanted and node.ctx == "load":
            lines[node.name] = min(node.lineno, lines.get(node.name, node.lineno))
    yield from sorted(lines.items(), key=lambda pair: (pair[1], pair[0]))


def _syntax(error: Any, origin: str) -> ConfigError:
    return ConfigError(f"{origin}:{error.lineno}: the template cannot be read: {error.message}")


def _line(traceback: TracebackType | None, file: str) -> int:
    """Line of the template that raised an error, or 0 if not known."""
    line = 0
    while traceback is not None:
        if traceback.tb_frame.f_code.co_filename == file:
            line = traceback.tb_lineno
        traceback = traceback.tb_next
    return line
