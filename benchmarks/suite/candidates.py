"""Base accuracy of a pretrained model on short questions, to choose pairs of task and model.

    python -m benchmarks.suite.candidates models/SmolLM2-135M-Instruct

Prints for each kind of question the accuracy of greedy answers and of answers at temperature 1, both of at
most 16 tokens, and one greedy answer. Kinds are made up here; nothing is trained.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Callable

from llmzero_ray.report.formatting import table
from llmzero_ray.tasks.greedy_accuracy import generate
from llmzero_ray.tasks.rewards import exact_match, math_answer

N_ITEMS, N_TOKENS = 64, 16
WORDS = [
    "cat",
    "dog",
    "sun",
    "tree",
    "house",
    "river",
    "stone",
    "apple",
    "green",
    "light",
    "music",
    "bread",
    "cloud",
    "plant",
    "chair",
    "horse",
]
Item = tuple[str, object]
Kind = Callable[[random.Random], Item]
NUMBER, WORD = "Reply with the number only.", "Reply with the word only."


def _sums(low: int, high: int, operators: str) -> Kind:
    def make(draw: random.Random) -> Item:
        a, b, operator = draw.randint(low, high), draw.randint(low, high), draw.choice(operators)
        a, b = (max(a, b), min(a, b)) if operator == "-" else (a, b)
        return f"What is {a} {operator} {b}? {NUMBER}", {"+": a + b, "-": a - b, "*": a * b}[operator]

    return make


def _larger(draw: random.Random) -> Item:
    a, b = draw.sample(range(10, 999), 2)
    return f"Which number is larger, {a} or {b}? {NUMBER}", max(a, b)


def _smallest(draw: random.Random) -> Item:
    some = draw.sample(range(10, 99), 3)
    return f"Which of the numbers {', '.join(map(str, some))} is the smallest? {NUMBER}", min(some)


def _next(draw: random.Random) -> Item:
    a, step = draw.randint(2, 60), draw.choice([1, 2, 3, 5])
    shown = ", ".join(str(a + i * step) for i in range(4))
    return f"Which number comes next: {shown}? {NUMBER}", a + 4 * step


def _letter(draw: random.Random) -> Item:
    word = draw.choice(WORDS)
    letter = draw.choice(word)
    return f"How many times does the letter {letter} occur in {word}? {NUMBER}", word.count(letter)


def _length(draw: random.Random) -> Item:
    word = draw.choice(WORDS)
    return f"How many letters does the word {word} have? {NUMBER}", len(word)


def _binary(draw: random.Random) -> Item:
    number = draw.randint(2, 15)
    return f"Write the number {number} in binary. Reply with the digits only.", f"{number:b}"


def _backwards(draw: random.Random) -> Item:
    word = draw.choice(WORDS)
    return f"Spell {word} backwards. {WORD}", word[::-1]


def _alphabet(draw: random.Random) -> Item:
    some = draw.sample(WORDS, 3)
    return f"Which word comes first in the alphabet: {some[0]}, {some[1]} or {some[2]}? {WORD}", min(some)


KINDS: dict[str, Kind] = {
    "sums, one digit": _sums(1, 9, "+"),
    "sums and differences to 20": _sums(1, 20, "+-"),
    "sums, two digits": _sums(10, 99, "+"),
    "products, one digit": _sums(2, 9, "*"),
    "larger of two": _larger,
    "smallest of three": _smallest,
    "next number": _next,
    "occurrences of a letter": _letter,
    "letters of a word": _length,
    "binary": _binary,
    "backwards": _backwards,
    "first in the alphabet": _alphabet,
}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("model", help="model directory")
    given = parser.parse_args()
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_pretrained(given.model, dtype=torch.bfloat16).eval()
    tokenizer, rows = AutoTokenizer.from_pretrained(given.model), []
    for name, make in KINDS.items():
        draw = random.Random(name)
        items = [make(draw) for _ in range(N_ITEMS)]
        score = exact_match.compute_score if make in (_backwards, _alphabet) else math_answer.compute_score
        shares, first = [], ""
        for sampling in ({"do_sample": False}, {"do_sample": True, "temperature": 1.0, "top_k": 0}):
            answers = generate(model, tokenizer, [prompt for prompt, _ in items], N_TOKENS, **sampling)
            right = [
                score("", answer, str(truth))["score"]
                for answer, (_, truth) in zip(answers, items, strict=True)
            ]
            shares.append(f"{sum(right) / N_ITEMS:.3f}")
            first = first or answers[0]
        rows.append((name, *shares, first.replace("\n", " ")))
    print(table(("question", "greedy", "sampled", "an answer"), rows, right=range(1, 3)))


if __name__ == "__main__":
    main()
