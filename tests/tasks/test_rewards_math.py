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
        (r"\boxed{2^2}", '{"target": ["3", "4"]}', 1),
    ],
)
def test_equal_objects_are_right_however_they_are_written(response: str, gold: str, acc: int) -> None:
    assert math_answer.compute_score("x", response, gold)["acc"] == acc


@needs_math_verify
def test_an_answer_that_cannot_be_computed_is_given_up_and_the_next_one_is_judged() -> None:
    assert math_answer.compute_score("x", r"\boxed{9^{9^{9^{9}}}}", "3")["acc"] == 0
    assert math_answer.compute_score("x", r"\boxed{\frac{4}{2}}", "2")["acc"] == 1


@needs_math_verify
def test_a_lost_process_is_replaced() -> None:
    assert math_client.is_equivalent(r"\boxed{1}", r"\boxed{\frac{2}{2}}")
    child = math_client._child
    assert child is not None
    os.killpg(child.pid, signal.SIGKILL)
    child.wait()
    math_client.is_equivalent(r"\boxed{1}", r"\boxed{\frac{2}{2}}")
    assert math_client.is_equivalent(r"\boxed{1}", r"\boxed{\frac{2}{2}}")


@needs_math_verify
def test_nothing_is_left_once_it_was_closed() -> None:
    assert math_client.is_equivalent("$1$", r"$\frac{2}{2}$")
    child = math_client._child
    assert child is not None
    math_client.close()
    with pytest.raises(ProcessLookupError):
        os.killpg(child.pid, 0)


CLIENT = """
import sys, time
from llmzero_ray.tasks.rewards import math_client
math_client.is_equivalent("$1$", r"$\\frac{2}{2}$")
print(math_client._child.pid, flush=True)
time.sleep(600)
"""


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
    """Whether the process exists and is no zombie, which only its parent could remove."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
