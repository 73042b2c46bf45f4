"""Mathematical answers, judged by math-verify in a process of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from llmzero_ray.errors import TaskError
from llmzero_ray.tasks.rewards import math_answer, math_client
from tests.waiting import wait_until


@pytest.fixture(autouse=True, scope="module")
def _no_process_left() -> Iterator[None]:
    math_client.close()  # tests of other modules may have left one
    yield
    math_client.close()


needs_math_verify = pytest.mark.skipif(
    math_client.importlib.util.find_spec("math_verify") is None, reason="math-verify is not installed"
)


@pytest.mark.parametrize(
    ("response", "gold", "acc"),
    [
        (r"\boxed{42}", "42", 1),
        (r"\boxed{0.50}", "1/2", 1),
        (r"\boxed{42.0}", "42", 1),
        (r"\boxed{0.000072}", "7.2e-05", 1),
        (r"\boxed{10000000000000000}", "1e+16", 1),
        (r"\boxed{1.0E16}", "1e+16", 1),
        (r"\boxed{-1.5e3}", "-1500", 1),
        (r"<answer>42</answer>", "42", 1),
        ("<think>42</think>42", "42", 1),
        ("<think>42", "42", 0),
        ("", "42", 0),
        (r"\boxed{}", "", 0),
        (r"42 \boxed{", "42", 0),
        (r"\boxed{" + "1+" * 1000 + "1}", "1001", 0),
    ],
)
def test_texts_and_numbers_need_no_library(response: str, gold: str, acc: int) -> None:
    assert math_answer.compute_score("x", response, gold)["acc"] == acc
    assert math_client._child is None


def test_a_missing_library_pays_nothing_and_is_refused_before_training(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(math_client.importlib.util, "find_spec", lambda name: None)
    assert math_answer.compute_score("x", r"\boxed{\frac{1}{2}}", "1/2")["acc"] == 0
    with pytest.raises(TaskError, match=r"math-verify.*install"):
        math_answer.check_math_verify()


@needs_math_verify
@pytest.mark.parametrize(
    ("response", "gold", "acc"),
    [
        (r"\boxed{\frac{1}{2}}", "1/2", 1),
        (r"\boxed{x=3}", "3", 1),
        (r"\boxed{\sqrt{12}}", r"2\sqrt{3}", 1),
        (r"\boxed{(x+1)^2}", "x^2+2x+1", 1),
        (r"\boxed{\{2,1\}}", r"\{1,2\}", 1),
        (r"\boxed{7, 8}", "7", 0),
        (r"\boxed{\frac{1}{3}}", "1/2", 0),
        ("The result is $\\frac{1}{2}$.", "1/2", 1),
        (r"\boxed{\frac{8}{6}}", '{"target": ["3", "4/3"]}', 1),
    ],
)
def test_equal_objects_are_right_however_they_are_written(response: str, gold: str, acc: int) -> None:
    assert math_answer.compute_score("x", response, gold)["acc"] == acc


NOT_WORKED_OUT = [
    ("2", "To find 31 - 29, we need to subtract the numbers"),
    ("70", "To find 55 + 15, we need to find a way"),
    ("2", "31 - 29"),
    ("2", "$31-29$"),
    ("2", r"\(31-29\)"),
    ("2", r"\[31-29\]"),
    ("2", r"\boxed{31-29}"),
    ("2", r"\boxed{((31)-(29))}"),
    ("2", "<answer>31 - 29</answer>"),
    ("2", "31 - 29 ="),
    ("2", "31 - 29 equals 31 - 29"),
    ("2", "The answer is 31 - 29"),
    ("2", "The final answer is $31-29$. I hope it is correct."),
    ("2", "The answer to 31 - 29 is 3."),
    ("2", r"\boxed{x = 31 - 29}"),
    ("2", r"\boxed{31 - 29 = 31 - 29}"),
    ("2", r"\boxed{5 = 31 - 29}"),
    ("2", r"\boxed{\frac{31-29}{1}}"),
    ("2", r"\boxed{2+0i}"),
    ("5", "To find 0 + 5, we need to"),
    ("39", "17 + 25 - 3"),
    ("20", "(4 + 6) * 2"),
    ("12", r"\boxed{3 \times 4}"),
    ("12", r"\boxed{3 \cdot 4}"),
    ("3", "12 / 4"),
    ("3", "12/4"),
    ("3", r"\boxed{12/4}"),
    ("3", r"\boxed{\frac{12}{4}}"),
    ("3", r"\boxed{12 \div 4}"),
    ("3", r"\boxed{\{12/4\}}"),
    ("3", r"\boxed{12/4 = ?}"),
    ("3", r"\boxed{12/4 \equiv 12/4}"),
    ("3", r"\frac{12}{4}%"),
    ("3", r"\frac{12}{4}\%"),
    ("3", r"\boxed{\frac{12}{4}\%}"),
    ("3", r"\boxed{\$12/4}"),
    ("5", r"\boxed{\$2 + \$3}"),
    ("10\\%", r"\boxed{11\%}"),
    ("18", r"\boxed{\$19}"),
    ("18", r"\boxed{1\$8}"),
    ("1718", r"\boxed{\$17\$18}"),
    ("2500", r"\boxed{25\$00}"),
    ("3.5", "7 / 2"),
    ("7/2", r"\boxed{7 \div 2}"),
    ("0.25", r"\boxed{0.5/2}"),
    ("0.3", r"\boxed{0.1+0.2}"),
    ("5/6", "1/2 + 1/3"),
    (r"\frac{5}{6}", r"\boxed{\frac{1}{2}+\frac{1}{3}}"),
    ("1/6", r"\boxed{1/2/3}"),
    ("1/2", r"\boxed{2^{-1}}"),
    ("1024", "2^10"),
    ("1000", r"\boxed{10^3}"),
    ("2500", r"\boxed{25 \times 10^2}"),
    ("12", r"\boxed{\sqrt{144}}"),
    ("120", r"\boxed{5!}"),
    ("10", r"\boxed{\binom{5}{2}}"),
    ("3", r"\boxed{\log_2 8}"),
    ("2", r"\boxed{\gcd(4,6)}"),
    ("2", r"\boxed{12 \mod 5}"),
    ("1", r"\boxed{e^0}"),
    ("-2", r"\boxed{\det\begin{pmatrix}1&2\\3&4\end{pmatrix}}"),
    ("10-5i", r"\boxed{(3+2i)+(7-7i)}"),
    (r"\{2\}", r"\boxed{\{31-29\}}"),
    ("(2,5)", r"\boxed{(31-29, 5)}"),
    (r"6\pi", r"\boxed{2 \cdot 3\pi}"),
    ("x=2", r"\boxed{x=3-1}"),
]
VALUES = [
    ("2", "2"),
    ("2", "$2$"),
    ("2", "The answer is 2"),
    ("2", "31 - 29 = 2"),
    ("2", "Answer: 31 - 29 = 2"),
    ("2", "The answer to 31 - 29 is 2."),
    ("2", "The answer to $31 - 29$ is $2$."),
    ("2", r"\boxed{31 - 29 = 2}"),
    ("2", r"\boxed{2 = 31 - 29}"),
    ("2", r"\boxed{x = 31 - 29 = 2}"),
    ("17", "So 3 * 4 + 5 = 17 apples."),
    ("-2", r"\boxed{(-2)}"),
    ("3", r"\boxed{+3}"),
    ("-3", r"\boxed{n=-3}"),
    ("x=2", "2"),
    ("1/2", "0.5"),
    ("1/2", r"\boxed{.5}"),
    ("1/2", r"\boxed{\frac12}"),
    ("1/2", "1 / 2"),
    ("1/2", r"\boxed{\frac{3}{6}}"),
    ("0.5", "1/2"),
    ("-0.5", r"\boxed{-\frac{1}{2}}"),
    ("3/2", r"\boxed{1\frac{1}{2}}"),
    ("3:4", r"\boxed{\frac{3}{4}}"),
    ("2000", r"\boxed{2 \times 10^3}"),
    (r"2 \times 10^3", "2000"),
    ("0.002", r"\boxed{2\cdot10^{-3}}"),
    ("150000", r"\boxed{150\times10^3}"),
    ("0.5", "50%"),
    ("0.5", r"\boxed{50\%}"),
    ("0.5", r"\boxed{50 %}"),
    ("0.5", r"\boxed{$50\%$}"),
    ("0.5", r"The answer is 50\%."),
    ("1/2", "<answer>50%</answer>"),
    ("50%", r"\boxed{50\%}"),
    ("50%", r"\boxed{\frac{1}{2}}"),
    (r"10\%", r"\boxed{10}"),
    (r"10\%", r"\boxed{10%}"),
    (r"10\%", r"\boxed{0.1}"),
    ("1000", r"\boxed{1{,}000}"),
    ("12345.6", "12,345.60"),
    ("5", "It costs $5."),
    ("5", r"It costs \$5."),
    ("18", r"\boxed{\$18}"),
    (r"15\%", r"\boxed{15\% \text{ increase}}"),
    ("18", r"\boxed{\$18.00}"),
    ("18", r"\boxed{\text{\$18}}"),
    ("70,000", r"So the profit is $\$70{,}000$."),
    (r"\$18.90", r"\boxed{18.9}"),
    (r"\$32,\!348", r"\boxed{\$32,348}"),
    ("2", "$x = 2 \\\\$"),
    ("5", r"\boxed{5\text{ cm}}"),
    ("90", r"\boxed{90^\circ}"),
    ("3.14", r"\boxed{x \approx 3.14}"),
    ("1/3", r"\boxed{0.333333}"),
    ("10-5i", r"\boxed{-5i+10}"),
    (r"2\sqrt{3}", r"\boxed{\sqrt{12}}"),
    (r"\frac{1}{\sqrt{3}}", r"\boxed{\frac{\sqrt{3}}{3}}"),
    (r"\frac{\sqrt{5}+1}{2}", r"\boxed{\frac{1+\sqrt{5}}{2}}"),
    (r"\pi/2", r"\boxed{\frac{\pi}{2}}"),
    ("x+1", r"\boxed{1+x}"),
    (r"2\cdot 4x", r"\boxed{8x}"),
    (r"\frac{x^2}{9}+\frac{y^2}{16}=1", r"\boxed{\frac{x^2}{3^2}+\frac{y^2}{4^2}=1}"),
    ("y=2x+1", r"\boxed{y-3=2(x-1)}"),
    ("(1,2)", r"\boxed{(1,2)}"),
    (r"[1,\infty)", r"\boxed{[1,\infty)}"),
    (r"\{-2,2\}", r"\boxed{\pm 2}"),
    ("5", r"\boxed{\{5\}}"),
    ("7", r"\boxed{\{x=7\}}"),
    ("7", r"\boxed{\text{7}}"),
    ("7", r"\boxed{\mathbf{7}}"),
    ("7.5", "7.5%"),
    ("7.5", r"\boxed{7.5\%}"),
    ("7.2e-05", "7.2e-5"),
    ("7.2e-05", "The answer is 0.000072."),
    ("7.2e-05", r"\boxed{7.2 \times 10^{-5}}"),
    (r"7.2 \times 10^{-5}", r"\boxed{7.2e-5}"),
    ("6.62607015e-34", r"\boxed{6.626 \times 10^{-34}}"),
    ("-5+2e", r"\boxed{2e-5}"),
    ("2e-5", r"\boxed{2e - 5}"),
    ("15/2", "The answer is: 15/2."),
    (r"2^{10}", "1024"),
    (r"2^{10}", r"\boxed{4\cdot2^8}"),
    ("1+1", r"\boxed{3-1}"),
]


@needs_math_verify
@pytest.mark.parametrize(("gold", "response"), NOT_WORKED_OUT)
def test_arithmetic_that_nobody_worked_out_is_no_answer(gold: str, response: str) -> None:
    assert math_answer.compute_score("x", response, gold)["acc"] == 0


@needs_math_verify
@pytest.mark.parametrize(("gold", "response"), VALUES)
def test_every_notation_of_the_value_is_right(gold: str, response: str) -> None:
    assert math_answer.compute_score("x", response, gold)["acc"] == 1


@needs_math_verify
@pytest.mark.parametrize(
    ("gold", "answer"),
    [
        ("7.2e-05", "0.000073"),
        ("7.2e-05", "7.2e-6"),
        ("1.2e-09", "0.0000000013"),
        ("1.2e-09", "0.0"),
        ("0.0000000012", r"1.3 \times 10^{-9}"),
        ("1e+16", "10^{16}"),
    ],
)
def test_small_and_large_numbers_are_told_apart(gold: str, answer: str) -> None:
    assert math_answer.compute_score("x", rf"\boxed{{{answer}}}", gold)["acc"] == 0


@needs_math_verify
@pytest.mark.parametrize(
    ("response", "pred"),
    [
        ("80 + 99 = 179", "179"),
        ("I add them up. " * 40 + "30 + 73 = 107 in this scenario.", "107"),
        ("The answer to 90 + 89 is 179", "179"),
        ("I do not know.", ""),
        (r"\boxed{80 + 99}", "80 + 99"),
        ("179", "179"),
    ],
)
def test_the_prediction_is_what_was_judged_and_not_the_text_around_it(response: str, pred: str) -> None:
    assert math_answer.compute_score("x", response, '{"target": ["", "12", "179"]}')["pred"] == pred


@needs_math_verify
@pytest.mark.parametrize(
    ("response", "found", "score"),
    [
        ("So 17 + 25 makes 42.", 1, 1.0),
        ("So 17 + 25 makes 41.", 0, 0.0),
        (r"\boxed{41}", 1, 0.2),
        ("", 0, 0.0),
    ],
)
def test_a_right_answer_was_found_even_without_a_mark(response: str, found: int, score: float) -> None:
    result = math_answer.compute_score("x", response, "42", format_bonus=0.2)
    assert (result["fmt_ok"], result["score"]) == (found, score)


@needs_math_verify
def test_an_answer_that_cannot_be_computed_is_given_up_and_the_next_one_is_judged() -> None:
    assert math_answer.compute_score("x", r"\boxed{9^{9^{9^{9}}}}", "3")["acc"] == 0
    assert math_answer.compute_score("x", r"\boxed{\frac{2}{4}}", "1/2")["acc"] == 1


@needs_math_verify
def test_a_lost_process_is_replaced() -> None:
    assert math_client.compare(r"\boxed{0.5}", r"\boxed{\frac{1}{2}}")[0]
    child = math_client._child
    assert child is not None
    os.killpg(child.pid, signal.SIGKILL)
    child.wait()
    math_client.compare(r"\boxed{0.5}", r"\boxed{\frac{1}{2}}")
    assert math_client.compare(r"\boxed{0.5}", r"\boxed{\frac{1}{2}}")[0]


@needs_math_verify
def test_nothing_is_left_once_it_was_closed() -> None:
    assert math_client.compare("$0.5$", r"$\frac{1}{2}$")[0]
    child = math_client._child
    assert child is not None
    math_client.close()
    with pytest.raises(ProcessLookupError):
        os.killpg(child.pid, 0)


CLIENT = """
import sys, time
from llmzero_ray.tasks.rewards import math_client
math_client.compare("$0.5$", r"$\\frac{1}{2}$")
print(math_client._child.pid, flush=True)
time.sleep(600)
"""


@pytest.mark.slow
@needs_math_verify
def test_the_child_ends_when_its_asker_is_killed() -> None:
    root = Path(__file__).parents[2]
    with subprocess.Popen([sys.executable, "-c", CLIENT], stdout=subprocess.PIPE, cwd=root) as client:
        assert client.stdout is not None
        child = int(client.stdout.readline())
        assert is_running(child)
        client.kill()
    wait_until(lambda: not is_running(child))


def is_running(pid: int) -> bool:
    """Whether the process exists and is not a zombie, which only its parent could remove."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
