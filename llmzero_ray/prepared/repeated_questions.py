"""Finds questions that occur in several rows and differ only in a number: copies that leak test questions
into training.

Two rows are the same question when they have one answer and either

- their texts are equal once a number in front is left out (`17.`, `17)`, `#17`, `Exercise 17:`, `Q17)`),
  or
- they are two of ten or more rows whose texts differ in numbers alone, and all of these have that answer.

Case, punctuation and spacing do not count. Numbers that change the answer make different questions, so `What
is 29 + 51?` and `What is 3 + 4?` are two. Equal prompts never occur in two splits.
"""

from __future__ import annotations

import re
import string
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence

MOST_REPEATED = 0.9
"""Share of different questions among the rows above which repeats are not worth a warning."""
_MANY = 10
_IN_FRONT = re.compile(
    r"""^[^\w\n]*(?:
        (?:[^\W\d_]++\W{0,3}){0,2}\d+\s*[.:)\]\-–—|]+\s   # 17.  Exercise 17:  Q17)  Problem No. 17 -
        | \#\s*\d+\s | [\[(]\d+[\])]\s                    # #17  [17]  (17)
    )""",
    re.MULTILINE | re.VERBOSE,
)
_NO_SIGNS = str.maketrans(dict.fromkeys(string.punctuation, " "))
_NO_NUMBERS = str.maketrans(dict.fromkeys(string.digits, " "))

_CURE = (
    "Scores on copies of training questions are not held-out: keep one row of each question, or name a "
    "column that its copies share as `group` in task.yaml"
)

Row = tuple[str, str]
"""Prompt and answer."""


def questions_of(rows: Sequence[Row]) -> list[str]:
    """A name for each row. Rows with the same question have the same name."""
    names = [f"{prompt}\x00{answer}" for prompt, answer in rows]
    names = _merged(names, rows, lambda text: _IN_FRONT.sub(" ", text), 2)
    return _merged(names, rows, lambda text: text.translate(_NO_NUMBERS), _MANY)


def _merged(names: list[str], rows: Sequence[Row], shorten: Callable[[str], str], fewest: int) -> list[str]:
    """The names, where at least `fewest` rows with the same shortened text and answer get a common name."""
    keys = [" ".join(shorten(prompt).translate(_NO_SIGNS).casefold().split()) for prompt, _ in rows]
    answers, sizes = defaultdict[str, set[str]](set), Counter(keys)
    for key, (_, answer) in zip(keys, rows, strict=True):
        answers[key].add(answer)
    same = {key for key, held in answers.items() if len(held) == 1 and sizes[key] >= fewest and key}
    return [key if key in same else name for key, name in zip(keys, names, strict=True)]


def repeated(n_rows: int, n_questions: int) -> str:
    """Note to the user that sampled rows hold fewer questions than rows."""
    return (
        f"near-duplicates: {n_rows} sampled rows are {n_questions} different questions; the others differ in "
        f"a number that leaves the answer as it is. {_CURE}"
    )


def shared_with_train(splits: Mapping[str, Sequence[Row]]) -> list[str]:
    """A warning, with counts, for each split that repeats questions of train."""
    rows = [row for each in splits.values() for row in each]
    names = iter(questions_of(rows))
    questions = {split: [next(names) for _ in each] for split, each in splits.items()}
    trained, found = set(questions["train"]), []
    for split, asked in questions.items():
        n = sum(name in trained for name in asked)
        if split != "train" and n:
            found.append(
                f"near-duplicates: {n} of {len(asked)} rows of {split} are questions of train with another "
                f"number (train: {len(questions['train'])} rows, {len(trained)} different questions). {_CURE}"
            )
    return found
