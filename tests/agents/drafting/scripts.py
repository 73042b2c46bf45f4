"""A scripted language model for the drafting agents: one answer per tool, or a list of them in turn."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tests.agents.llm.messages_server import Answer, Reply, Request

PAYS_ALWAYS = """
def compute_score(data_source, solution_str, ground_truth, extra_info=None, **kwargs):
    return {"score": 1.0, "acc": 1.0, "fmt_ok": 1.0, "pred": ""}
"""
GOOD = '''
"""1 when the number after the last #### is that of the solution."""


def _result(text):
    parts = text.rpartition("####")
    return parts[2].strip()[:64] if parts[1] else ""


def compute_score(data_source, solution_str, ground_truth, extra_info=None, **kwargs):
    found = _result(solution_str)
    right = float(found != "" and found == _result(ground_truth))
    return {"score": right, "acc": right, "fmt_ok": float(found != ""), "pred": found}
'''


def described(**changes: Any) -> dict[str, Any]:
    """A good answer of the task descriptor to rows of `folders.questions`."""
    return {
        "table": 1,
        "name": "numbers",
        "description": "Questions about numbers, each with one right answer.",
        "question": "{question}",
        "answer": "answer",
        "options": [],
        "answer_form": "letter",
        "licence": None,
        "doubts": ["The rows look made up."],
        **changes,
    }


def ranked(**changes: Any) -> dict[str, Any]:
    """A good answer of the tool selector."""
    names = ["dr_grpo", "grpo", "practitioner", "dapo_clip"]
    return {"explanation": "Long solutions with one result.", "ranking": names, **changes}


def judged(**changes: Any) -> dict[str, Any]:
    """A good answer of the reward writer."""
    return {
        "reason": "The answers are short texts.",
        "kind": "exact_match",
        "ignore_case": True,
        "pattern": None,
        "code": None,
        "gold": None,
        "instruction": "Give the answer between <answer> and </answer>.",
        **changes,
    }


def coded(code: str) -> dict[str, Any]:
    """A reward that is a function."""
    words = "End with #### and the number."
    return judged(kind="python", ignore_case=False, code=code, gold="{answer}", instruction=words)


def model(**answers: Any) -> Callable[[Request], Reply]:
    """The script of a server: describe, rank and reward are inputs, replies, or lists of these, of which the
    last one repeats."""
    given: Mapping[str, Any] = {"describe": described(), "rank": ranked(), "reward": judged(), **answers}
    tools = {"describe_task": "describe", "rank_recipes": "rank", "write_reward": "reward"}
    asked = dict.fromkeys(given, 0)

    def reply(request: Request) -> Reply:
        agent = tools[request.tool]
        listed = given[agent] if isinstance(given[agent], list) else [given[agent]]
        found = listed[min(asked[agent], len(listed) - 1)]
        asked[agent] += 1
        return Answer(input=found) if isinstance(found, dict) else found

    return reply
