"""Tables in the shapes of public data sets, with made-up content: shape -> the row of number `k`."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

Shape = Callable[[int], dict[str, Any]]
LETTERS = "ABCD"


def turns(*said: tuple[str, Any]) -> list[dict[str, Any]]:
    """A chat in OpenAI's form."""
    return [{"role": role, "content": content} for role, content in said]


def options(k: int, labels: str = LETTERS) -> dict[str, list[str]]:
    """Options in ARC's form."""
    return {"text": [f"option {k} {label}" for label in labels], "label": list(labels)}


TOLD: dict[str, tuple[Shape, str, str, str, str]] = {
    "GSM8K, result alone": (
        lambda k: {"question": f"Add {k} and 1.", "answer": k + 1},
        "{question}", "answer", "math", "",
    ),
    "MATH-500": (
        lambda k: {"problem": f"Halve {k}.", "solution": "Half", "answer": f"\\frac{{{k}}}{{2}}", "level": 3},
        "{problem}", "answer", "math", "solution, level",
    ),
    "boxed results": (
        lambda k: {"problem": f"Add {k} and 1.", "answer": f"$\\boxed{{{k + 1}}}$"},
        "{problem}", "answer", "math", "",
    ),
    "SimpleRL": (
        lambda k: {
            "prompt": turns(("user", f"Add {k}.")), "question": f"Add {k}.", "answer": str(k), "subject": "",
            "reward_model": {"style": "rule", "ground_truth": str(k)},
        },
        "{question}", "answer", "math", "prompt, subject, reward_model",
    ),
    "Eurus": (
        lambda k: {
            "data_source": "numina", "prompt": turns(("system", "Be short."), ("user", f"Add {k}.")),
            "reward_model": {"style": "rule", "ground_truth": str(k)}, "extra_info": {"index": k},
        },
        "{prompt.system}\n\n{prompt.user}", "reward_model.ground_truth", "math",
        "data_source, reward_model.style, extra_info",
    ),
    "MMLU": (
        lambda k: {"question": f"Q {k}", "subject": "law", "choices": options(k)["text"], "answer": k % 4},
        "{question}\n{options}", "answer", "mcq", "subject",
    ),
    "HotpotQA": (
        lambda k: {
            "id": str(k), "question": f"Who is {k}?", "answer": f"Name {k}", "level": "hard",
            "context": {"title": ["a", "b"], "sentences": [["x"], ["y"]]},
        },
        "{question}", "answer", "exact_match", "id, level, context",
    ),
    "Search-R1": (
        lambda k: {"question": f"Who is {k}?", "golden_answers": [f"Name {k}", f"N. {k}"]},
        "{question}", "golden_answers", "exact_match", "",
    ),
    "BoolQ": (
        lambda k: {"question": f"Is {k * k % 7} cold?", "passage": f"P {k}", "answer": k % 2 == 0},
        "{passage}\n\n{question}", "answer", "exact_match", "",
    ),
    "Alpaca": (
        lambda k: {"instruction": f"Name {k}.", "input": "" if k % 3 else f"thing {k}", "output": f"n {k}"},
        "{instruction}\n\n{input:optional}", "output", "exact_match", "",
    ),
    "Alpaca with a text": (
        lambda k: {"instruction": "Add.", "input": f"{k} and 1", "output": f"{k + 1}", "text": f"Below {k}"},
        "{instruction}\n\n{input}", "output", "math", "text",
    ),
    "ShareGPT": (
        lambda k: {
            "id": str(k),
            "conversations": [{"from": "human", "value": f"Add {k}."}, {"from": "gpt", "value": f"{k}"}],
        },
        "{conversations.user}", "conversations.assistant", "math", "id",
    ),
    "OpenAI": (
        lambda k: {"messages": turns(("system", "Hi."), ("user", f"Add {k}."), ("assistant", str(k)))},
        "{messages.system}\n\n{messages.user}", "messages.assistant", "math", "",
    ),
    "pictures": (
        lambda k: {"images": [{"bytes": b"x", "path": None}], "problem": f"Find {k}.", "answer": str(k)},
        "{problem}", "answer", "math", "images (prompts are text alone)",
    ),
    "VeRL's rows with a text as prompt": (
        lambda k: {"prompt": f"Add {k}.", "reward_model": {"ground_truth": str(k)}, "extra_info": {"i": k}},
        "{prompt}", "reward_model.ground_truth", "math", "extra_info",
    ),
}  # fmt: skip
"""What a draft makes of a shape: the prompt's beginning, the answer, the reward, the columns not used."""

ASKED: dict[str, tuple[Shape, str, str]] = {
    "GSM8K, short": (
        lambda k: {"question": f"Add {k}.", "answer": f"{k}+1=<<{k}+1={k + 1}>>{k + 1}\n#### {k + 1}"},
        "reward", "whole solutions that end in a marked result",
    ),
    "GSM8K, usual": (
        lambda k: {"question": f"Add {k}.", "answer": f"{'It is so. ' * 20}\n#### {k + 1}"},
        "reward", "whole solutions that end in a marked result",
    ),
    "results with a unit": (
        lambda k: {"question": f"Add {k}.", "answer": f"Add.\n#### {k} dollars"},
        "reward", "whole solutions that end in a marked result",
    ),
    "MATH": (
        lambda k: {"problem": f"Add {k}.", "solution": f"We add, so $x=\\boxed{{{k}}}$."},
        "reward", "whole solutions that end in a marked result",
    ),
    "MetaMath": (
        lambda k: {"query": f"Add {k}.", "response": f"So #### {k}\nThe answer is: {k}"},
        "reward", "whole solutions that end in a marked result",
    ),
    "tagged results": (
        lambda k: {"question": f"Add {k}.", "answer": f"<think>x</think><answer>{k}</answer>"},
        "reward", "whole solutions that end in a marked result",
    ),
    "knights and knaves": (
        lambda k: {"quiz": f"Puzzle {k}: who lies?", "solution": [True, k % 2 == 0]},
        "reward", "lists that are not wordings of one answer, such as [true, true]",
    ),
    "a list of numbers": (
        lambda k: {"question": f"Sort {k}.", "answer": [1, k + 2]},
        "reward", "exact_match takes the whole list, as JSON, for the answer",
    ),
    "a grid": (
        lambda k: {"question": f"Turn {k}.", "answer": [[1, k], [2, 3]]},
        "reward", "such as [[1, 0], [2, 3]]",
    ),
    "MBPP with tests as answer": (
        lambda k: {"question": f"Add {k}.", "answer": [f"assert add({k}) == {k + 1}"]},
        "reward", "lists of code or of long texts",
    ),
    "TACO": (
        lambda k: {"question": f"Add {k}.", "answer": json.dumps({"inputs": ["1"], "outputs": [f"{k}"]})},
        "reward", "40 of 40 answers in answer are lists or objects in one text",
    ),
    "Skywork": (
        lambda k: {"problem": f"Add {k}.", "answer": json.dumps([str(k)])},
        "reward", "40 of 40 answers in answer are lists or objects in one text",
    ),
    "tool calls": (
        lambda k: {"query": f"Ask {k}.", "answers": json.dumps([{"name": "w", "arguments": {"k": k}}])},
        "reward", "40 of 40 answers in answers are lists or objects in one text",
    ),
    "lists in Python's notation": (
        lambda k: {"question": f"Who is {k}?", "answer": f"['Name {k}', 'N. {k}']"},
        "reward", "40 of 40 answers in answer are lists or objects in one text",
    ),
    "TriviaQA": (
        lambda k: {"question": f"Q {k}", "id": k, "answer": {"aliases": [f"T {k}"], "value": f"T {k}"}},
        "answer", "id, answer.aliases, answer.value.",
    ),
    "an object as the only other column": (
        lambda k: {"question": f"Q {k}", "answer": {"aliases": [f"T {k}"], "value": f"T {k}"}},
        "answer", "answer.aliases, answer.value.",
    ),
    "SQuAD": (
        lambda k: {"context": f"C {k}", "question": f"Q {k}", "answers": {"text": [f"a {k}"], "start": [k]}},
        "answer", "context, answers.text, answers.start.",
    ),
    "SQuAD, a list of objects": (
        lambda k: {"context": f"C {k}", "question": f"Q {k}", "answers": [{"text": f"a {k}", "start": k}]},
        "answer", "context, answers.text, answers.start.",
    ),
    "HumanEval": (
        lambda k: {"id": k, "prompt": f"def f{k}():", "canonical_solution": "  return", "test": "check(f)"},
        "answer", "id, canonical_solution, test.",
    ),
    "UltraFeedback": (
        lambda k: {
            "prompt": f"Write {k}.", "chosen": turns(("user", f"Write {k}."), ("assistant", f"good {k}")),
            "rejected": turns(("user", f"Write {k}."), ("assistant", f"bad {k}")), "score": 8.0,
        },
        "answer", "chosen.user, chosen.assistant, rejected.user, rejected.assistant, score.",
    ),
    "OpenBookQA": (
        lambda k: {
            "id": str(k), "question": {"stem": f"Q {k}", "choices": options(k)}, "answerKey": LETTERS[k % 4],
        },
        "prompt", "id, question.stem, question.choices.text, question.choices.label.",
    ),
    "ARC": (
        lambda k: {"id": f"M{k}", "question": f"Q {k}", "choices": options(k), "answerKey": LETTERS[k % 4]},
        "choices", "One of: choices.text, choices.label.",
    ),
    "ARC with digits": (
        lambda k: {"question": f"Q {k}", "choices": options(k, "1234"), "answerKey": "1234"[k % 4]},
        "choices", "One of: choices.text, choices.label.",
    ),
    "options as a list of objects": (
        lambda k: {
            "question": f"Q {k}", "answerKey": LETTERS[k % 4],
            "choices": [{"label": label, "text": f"option {k} {label}"} for label in LETTERS],
        },
        "choices", "One of: choices.label, choices.text.",
    ),
    "Countdown": (
        lambda k: {"target": 3 * k, "nums": [k, k + 1, k + 2]},
        "prompt", "nums.",
    ),
}  # fmt: skip
"""Which field a draft asks for, and words of the question."""
