"""Child process that compares mathematical texts with math-verify: a JSON list per line in, a result out.

An answer must be a value: arithmetic that nobody worked out is not the same as its result. Where the truth is
a number, the answer is a numeral, a fraction, a percentage or a number in scientific notation. Where the
truth is another constant, no two numbers are left to add or multiply, and none to raise to a power. Where the
truth has unknowns, or is such arithmetic itself, every equal expression counts.

The process forks a worker and replaces it when a request kills it: after `CPU_LIMIT_S` seconds of processor
time, or for memory. Such a request is answered with `killed`, others with a JSON list: their number, the
result, and the text that was read as the answer (empty if none was found).
Both end when standard input closes. Run as a file; imports nothing of this project.
"""

from __future__ import annotations

import json
import logging
import os
import re
import resource
import signal
import sys
from functools import lru_cache
from importlib import import_module
from typing import Any

CPU_LIMIT_S = 0.45
_MAX_MEMORY = 4 * 2**30
_READ = 65_536
_FIRST = (
    ("\\boxed{x^2+2x+1}", "\\boxed{(x+1)^2}"),
    ("\\boxed{2\\sqrt{3}}", "$\\sqrt{12}$"),
    ("\\boxed{(1,2)}", "\\boxed{\\left[1,\\frac{5}{2}\\right]}"),
    ("\\boxed{\\{1,2\\}}", "the answer is 1/2."),
    ("\\boxed{x=\\pi}", "\\boxed{3.14}"),
    ("\\boxed{\\begin{pmatrix}1\\\\2\\end{pmatrix}}", "\\boxed{\\sin(x)\\le 1}"),
)

_EQUALS = re.compile(r"(?<![<>!\\])=|\\approx|\\equiv|≈|≡")
_SPACING = re.compile(r"\\[,;:! ]|\\(?:left|right)\b|\^\{?\\circ\}?")
_QUOTIENT = re.compile(r"[/:÷]|\\(?:div|frac)\b")
_DIVISION = re.compile(r"÷|\\div\b")
_SPACED_QUOTIENT = re.compile(r"\s/\s|:")
_OPERATION = re.compile(
    r"[+*×·^!]|[\d)}]\s*[-−]|\\(?!(?:frac|text|mathrm|mathbf|overline|quad|qquad|degree)\b)[A-Za-z]+"
)
"""Operators in the text of a number that was computed while it was parsed."""


def main() -> int:
    """Answer questions until there are no more."""
    logging.disable(logging.CRITICAL)
    library = import_module("math_verify")
    # Warm up: the first questions build parsers and fill caches, which takes longer than answering.
    for gold, answer in _FIRST:
        _same(library, gold, answer)
    os.write(1, b"ready\n")
    while True:
        child = os.fork()
        if child == 0:
            os._exit(_answer_all(library))
        _, status = os.waitpid(child, 0)
        if os.WIFEXITED(status) and os.WEXITSTATUS(status) == 0:
            return 0
        os.write(1, b"killed\n")


def _answer_all(library: Any) -> int:
    """Answer questions until the input ends, and return exit code 0. The process may be killed before."""
    resource.setrlimit(resource.RLIMIT_AS, (_MAX_MEMORY, _MAX_MEMORY))
    while question := _next_line():
        signal.setitimer(signal.ITIMER_PROF, CPU_LIMIT_S)
        number, gold, answer = json.loads(question)
        same, read = _same(library, gold, answer)
        signal.setitimer(signal.ITIMER_PROF, 0)
        os.write(1, json.dumps([number, same, read]).encode() + b"\n")
    return 0


def _next_line() -> bytes:
    """The next question (there is never more than one waiting). Empty at the end of the input."""
    held = b""
    while not held.endswith(b"\n"):
        more = os.read(0, _READ)
        if not more:
            return b""
        held += more
    return held


def _same(library: Any, gold: str, answer: str) -> tuple[bool, str]:
    """(whether an answer is the truth, the part of its text that was judged)."""
    read = ""
    try:
        truth = _parsed(library, gold)
        while found := _parse(library, answer):
            read = str(found[-1])
            if not library.verify(truth, found, timeout_seconds=None) or not _is_near(truth[0], found[0]):
                break
            if _is_value(library, truth, found):
                return True, read
            # "The answer to 31 - 29 is 2": the text after the arithmetic counts.
            _, arithmetic, answer = answer.rpartition(found[-1])
            if not arithmetic:
                break
    except Exception:  # noqa: BLE001  a parser raises many kinds, and none means equal
        pass
    return False, read


def _is_near(truth: Any, found: Any) -> bool:
    """Whether two numbers that math-verify takes for equal differ by at most 1 %. It rounds to 6 decimals, so
    that all numbers below 5e-7 are the same to it. Always true from 1e-4 on, and for anything else."""
    try:
        gold, answer = (float(_sides(value)[-1]) for value in (truth, found))
    except (TypeError, ValueError, AttributeError, OverflowError):
        return True
    return not (abs(gold) < 1e-4 and abs(answer - gold) > 0.01 * abs(gold))


def _is_value(library: Any, truth: list[Any], found: list[Any]) -> bool:
    """Whether an answer that equals the truth was worked out. Both are lists of an object and its text."""
    if isinstance(truth[0], str) or isinstance(found[0], str) or truth[-1] == found[-1]:
        return True
    golds, sides = _sides(truth[0]), _sides(found[0])
    if len(golds) > 1 and not getattr(golds[0], "is_Symbol", False):
        return True
    gold = golds[-1]
    if _is_numeral(gold) or _is_fraction(gold):
        texts = _EQUALS.split(found[-1])
        if len(texts) != len(sides):
            texts = [text for text in texts if re.search(r"\d", text)][-1:] * len(sides)
        as_quotient = _QUOTIENT.search(truth[-1]) is not None
        return any(
            _is_written_number(library, side, text, as_quotient)
            and library.verify(truth, [side], timeout_seconds=None)
            for side, text in zip(sides, texts, strict=True)
        )
    unknowns = {str(symbol) for symbol in gold.free_symbols} - {"i"}
    return bool(unknowns) or _has_arithmetic(gold) or not _has_arithmetic(sides[-1])


def _sides(value: Any) -> list[Any]:
    """Sides of an equation or of a chain of equations, the only element of a set, otherwise the object
    itself."""
    kind = type(value).__name__
    if kind == "And":
        chain = [_sides(part) for part in value._unsorted_args]
        return [chain[0][0], *(sides[-1] for sides in chain)]
    if kind == "FiniteSet" and len(value.args) == 1:
        return _sides(value.args[0])
    if kind == "Equality":
        return list(value.args)
    return [value]


def _is_written_number(library: Any, value: Any, text: str, as_quotient: bool) -> bool:
    """Whether an object is a number, written as one. `as_quotient`: the truth is written as a quotient.

    The parser computes some arithmetic itself (`8/2`), so the text must not contain any.
    """
    text = _SPACING.sub("", text).strip().lstrip("+")
    if _is_fraction(value):
        spaced = _DIVISION if as_quotient else re.compile(f"{_DIVISION.pattern}|{_SPACED_QUOTIENT.pattern}")
        return not spaced.search(text) and len(_QUOTIENT.findall(text)) <= 1
    if not _is_numeral(value):
        return bool(getattr(value, "is_Symbol", False))  # \text{2}
    if not _QUOTIENT.search(text) and not (value.is_Number and _OPERATION.search(text)):
        return True
    # If the text alone parses to another object, it says nothing about this one.
    read = _parse(library, f"\\boxed{{{text}}}")
    number = value if value.is_Number else _factors(value)[0]
    return not read or not {value, number} & set(_sides(read[0]))


def _is_numeral(value: Any) -> bool:
    """Whether an object is a whole number, a decimal, a percentage, or a number in scientific notation."""
    if getattr(value, "is_Integer", False) or getattr(value, "is_Float", False):
        return True
    factors = [factor for factor in _factors(value) if factor != -1]
    if len(factors) != 2 or not (factors[0].is_Integer or factors[0].is_Float):
        return False
    number, unit = factors
    if type(unit).__name__ == "UnevaluatedExpr":
        return bool(unit.args[0].is_Rational)
    if not unit.is_Pow or unit.args[0] != 10 or not unit.args[1].is_Integer:
        return False
    return bool(1 <= abs(number) < (1_000 if unit.args[1] % 3 == 0 else 10))


def _is_fraction(value: Any) -> bool:
    """Whether an object is a quotient of two whole numbers that is not a whole number."""
    if getattr(value, "is_Rational", False):
        return not value.is_Integer
    factors = [factor for factor in _factors(value) if factor != -1]
    if len(factors) != 2 or not factors[1].is_Pow:
        return False
    above, (below, exponent) = factors[0], factors[1].args
    # The parser reads 1/2 followed by a full stop as 1/2.0.
    whole = below.is_Integer or (below.is_Float and float(below).is_integer())
    return bool(above.is_Integer and whole and exponent == -1 and below and above % below)


def _factors(value: Any) -> list[Any]:
    """Factors of a product, numbers first. Empty for anything else."""
    if not getattr(value, "is_Mul", False):
        return []
    parts = [part for factor in value.args for part in _factors(factor) or [factor]]
    return sorted(parts, key=lambda part: not part.is_Number)


def _has_arithmetic(value: Any) -> bool:
    """Whether two numbers are left to add or multiply, or one to raise to a power, in an object."""
    if _is_numeral(value) or _is_fraction(value):
        return False
    if getattr(value, "is_Pow", False) and value.args[0].is_Number:
        return bool(value.args[1].is_Integer and value.args[1] != -1)
    parts = _factors(value) or (value.args if getattr(value, "is_Add", False) else ())
    numbers = [part for part in parts if part != -1 and (_is_numeral(part) or _is_fraction(part))]
    return len(numbers) > 1 or any(map(_has_arithmetic, getattr(value, "args", ())))


def _parse(library: Any, text: str) -> list[Any]:
    parsed: list[Any] = library.parse(text, parsing_timeout=None)
    return parsed


@lru_cache(maxsize=1024)
def _parsed(library: Any, gold: str) -> Any:
    """The parsed gold answer. Cached, because all answers to one prompt are compared with it."""
    return _parse(library, gold)


if __name__ == "__main__":
    sys.exit(main())
