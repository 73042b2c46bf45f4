"""The report of a full reward validation, as values and as lines of text."""

from __future__ import annotations

from dataclasses import dataclass

from llmzero_ray.prepared.manifest import ValidationCheckEntry, ValidationEntry

EXAMPLES = 3
"""Rows that are named for each check."""
RIGHT = "right answers score 1"
"""Name of the first check."""
_SHOWN = 60
Table = tuple[tuple[str, ...], ...]


@dataclass(frozen=True, kw_only=True)
class ValidationCheck:
    """One check of the reward."""

    name: str
    passed: bool
    found: str
    needed: str
    examples: tuple[str, ...]
    """Up to `EXAMPLES` failing rows. Empty if no single row is to blame."""


@dataclass(frozen=True, kw_only=True)
class ValidationReport:
    """All checks of one reward."""

    reward: str
    n_rows: int
    isolation: str
    gold_response: str
    """Form of the right answers, `{answer}` standing for the answer."""
    checks: tuple[ValidationCheck, ...]

    @property
    def found_gold(self) -> bool:
        """Whether right answers score 1."""
        return all(check.passed for check in self.checks if check.name == RIGHT)

    @property
    def passed(self) -> bool:
        """Whether every check is passed."""
        return all(check.passed for check in self.checks)

    def text(self) -> str:
        """The result, and each check that failed with its examples, for an error message."""
        failed = [check for check in self.checks if not check.passed]
        if not failed:
            return f"reward {self.reward} passed validation on {self.n_rows} rows"
        lines = [f"reward {self.reward} did not pass validation on {self.n_rows} rows:"]
        for check in failed:
            lines.append(f"  {check.name}: {check.found}; needed: {check.needed}")
            lines += [f"    {example}" for example in check.examples]
        return "\n".join(lines)

    def entry(self) -> ValidationEntry:
        """The part that a manifest keeps."""
        checks = tuple(
            ValidationCheckEntry(name=check.name, found=check.found, needed=check.needed, passed=check.passed)
            for check in self.checks
        )
        return ValidationEntry(isolation=self.isolation, gold_response=self.gold_response, checks=checks)


def validation_table(entry: ValidationEntry) -> Table:
    """Header and one line per check that a manifest keeps."""
    lines = [
        (check.name, check.found, check.needed, "passed" if check.passed else "FAILED")
        for check in entry.checks
    ]
    return (("validation", "found", "needed", "result"), *lines)


def shown_result(result: object) -> str:
    """Result of a reward, shortened."""
    text = ascii(result)
    return text if len(text) <= 2 * _SHOWN else f"{text[: 2 * _SHOWN]}..."


def shown(text: str) -> str:
    """A text as a short literal: controls escaped, the middle of long ones left out."""
    literal = ascii(text[: 2 * _SHOWN])
    if len(text) <= _SHOWN and len(literal) <= 2 * _SHOWN:
        return literal
    return f"{literal[:_SHOWN]}... ({len(text)} characters)"
