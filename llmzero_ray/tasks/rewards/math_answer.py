"""Reward 1 when the answer (the last `\\boxed{}`, else the last `<answer>`, else what math-verify finds in
the last 300 characters) is the same mathematical object as the expected one, else 0.

math-verify decides, in a child process with a limit on its time (math_client.py): an answer such as a
tower of powers would keep it busy forever. Arithmetic that equals the expected number is not an answer: it
may be the question. math_server.py says what is. The ground truth is LaTeX or plain notation (`7.2e-05` is a
number), or `{"target": [...]}` in JSON. Option: `format_bonus` (default 0).
Source: the package math-verify (Kydlíček, Hugging Face).
"""

from __future__ import annotations

import importlib.util
import re
from decimal import Decimal
from fractions import Fraction
from typing import Any

from llmzero_ray.errors import TaskError
from llmzero_ray.prepared.gold_answers import accepted_answers
from llmzero_ray.tasks.rewards.extraction import Result, has_box, last_marked, result, visible
from llmzero_ray.tasks.rewards.math_client import compare
from llmzero_ray.tasks.rewards.reward_options import options_of_row

MAX_ANSWER = 300
"""Characters of an answer that is parsed; longer ones are compared as text only."""
_TAIL = 300
"""Characters at the end of an unmarked response in which math-verify looks."""
_MAX_TARGETS = 8
_E_NOTATION = re.compile(r"[+-]?[0-9]{1,30}(?:\.[0-9]{1,30})?[eE][+-]?[0-9]{1,3}")
_PERCENTAGE = re.compile(r"([+-]?[0-9.,]+\s*%)\s*(?:\\text\{[A-Za-z ]*\})?")
_DOLLAR = re.compile(r"(?<!\\)\\\$")
"""A dollar sign in LaTeX. It says what a number counts, and is not part of the answer."""
_NUMBER = re.compile(rf"[+-]?[0-9]{{1,30}}(?:\.[0-9]{{1,30}}|/0*[1-9][0-9]{{0,29}})?|{_E_NOTATION.pattern}")


def compute_score(
    data_source: Any,  # noqa: ARG001  VeRL passes every argument by its name
    solution_str: Any,
    ground_truth: Any,
    extra_info: Any = None,
    **others: Any,
) -> Result:
    """Score one response; `pred` is the marked answer, or what was judged of a response without one. `fmt_ok`
    is 1.0 for every marked answer, and for a right one without a mark."""
    text = visible(solution_str)
    found = last_marked(text)
    marked, answer = found is not None, text.strip()[-_TAIL:] if found is None else found
    golds = [gold.strip() for gold in accepted_answers(ground_truth)[:_MAX_TARGETS]]
    right, pred = False, answer
    for gold in filter(None, golds if answer else ()):
        right, pred = _judged(gold, answer, marked)
        if right:
            break
    bonus = options_of_row(extra_info, others).get("format_bonus")
    return result(right=right, found=right or (marked and answer != ""), pred=pred, format_bonus=bonus)


def check_math_verify() -> None:
    """Check that math-verify can be used.

    Raises:
        TaskError: it is not installed.
    """
    missing = [name for name in ("math_verify", "antlr4") if importlib.util.find_spec(name) is None]
    if missing:
        raise TaskError(
            f"reward math needs the package math-verify ({', '.join(missing)} not found); install "
            "llmzero-ray[tasks] on every node"
        )


def _judged(gold: str, answer: str, marked: bool) -> tuple[bool, str]:
    """(whether an answer is the expected one, the part of it that was compared)."""
    if gold == answer:
        return True, answer
    if _NUMBER.fullmatch(gold) and _NUMBER.fullmatch(answer) and Fraction(gold) == Fraction(answer):
        # 8/2 is not a way to write 4.
        return "/" not in answer or Fraction(answer).denominator > 1, answer
    if len(gold) > MAX_ANSWER or len(answer) > MAX_ANSWER:
        return False, answer
    same, read = compare(_boxed(gold), _boxed(answer) if marked else _plain(answer))
    plain_gold, plain_answer = _written_out(gold), _written_out(answer)
    if not same and (plain_gold, plain_answer) != (gold, answer):
        # math-verify takes the e of 7.2e-05 for Euler's number.
        right, pred = _judged(plain_gold, plain_answer, marked)
        if right:
            return True, pred
    return same, answer if marked or read is None else read


def _written_out(text: str) -> str:
    """A number such as `7.2e-05` without its exponent; any other text unchanged."""
    return f"{Decimal(text):f}" if _E_NOTATION.fullmatch(text) else text


def _boxed(text: str) -> str:
    text = _plain(text)
    if found := _PERCENTAGE.fullmatch(text):  # in a box, math-verify takes it for a text
        return found[1]
    as_it_is = has_box(text) or "$" in text
    return text if as_it_is else f"\\boxed{{{text}}}"


def _plain(text: str) -> str:
    r"""The text with `%` for `\%`, and without dollar signs that are not those of a formula."""
    return _DOLLAR.sub(" ", text).replace("\\%", "%")
