"""Second tier of the suite: a pretrained model on short questions.

    python -m benchmarks.suite.real MODEL                   # base accuracy of each kind of question
    python -m benchmarks.suite.real MODEL --plan real --seeds 201 > compare.yaml
    python -m jobs.compare compare.yaml                     # continues after an interruption
    python -m benchmarks.suite.real --keep runs/real        # adds its ended searches to real_searches.tar.xz
    python -m benchmarks.suite.real --table                 # scores of the searches there

MODEL is the directory that `llmzero model smollm2` makes. The first command trains nothing: it prints the
accuracy of greedy and of sampled answers (temperature 1), both of at most 16 tokens, and one greedy answer.
The second one writes questions of the chosen kinds to CSV files, prepares them as a user would, and prints
the plan of a comparison with the recipe smollm2_cpu as default; what the reward pays for answers without
thought goes to standard error. It compares the searches with a static
configuration.
"""

from __future__ import annotations

import argparse
import csv
import json
import random
import shutil
import sys
import tarfile
import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from llmzero_ray.cli.output import TerminalConsole
from llmzero_ray.config import presets
from llmzero_ray.config.yaml_text import read_yaml, to_yaml
from llmzero_ray.errors import LlmzeroError
from llmzero_ray.journal import event_file
from llmzero_ray.report.facts import SearchFacts
from llmzero_ray.report.formatting import TextTable, table
from llmzero_ray.storage.metric_files import load_points
from llmzero_ray.tasks.commands.prepare import prepare_source_task

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
SIZES = {"n_train": 900, "n_val": 128, "n_test": 256, "n_confirm": 0}
"""Items of each split of a pair."""
PAIRS = {
    "larger": "larger of two",
    "middle": "middle of three",
    "sums_99": "sums, two digits",
    "smallest": "smallest of three",
    "mixed": "sums, differences, products",
}
"""Pairs of the second tier: name -> kind of question. Chosen by base accuracy alone, between .05 and .6."""
ONE_NUMBER: Mapping[str, Any] = {"regex": {"pattern": r"^\D*(\d+)\D*$"}}
REWARDS: Mapping[str, Any] = {"smallest": ONE_NUMBER}
"""Pair -> its reward if that is not `math`. An answer with two numbers counts as wrong."""
SEARCHES = Path(__file__).parent / "real_searches.tar.xz"
KEPT = (
    "search.yaml",
    "strategy.yaml",
    "final/*.parquet",
    "journal/**/*.json",
    "nodes/*/spec.yaml",
    "nodes/*/result-*.json",
    "nodes/*/metrics.parquet",
    "nodes/*/agents/*",
)
"""Files of a search that are kept; weights, logs and answers to validation items are not."""
RECIPE, N_RUNS, RUN_STEPS = "smollm2_cpu", 4, 10
"""The default recipe, and the number and length of its runs that give every method's compute."""


def _schedule(*phases: Mapping[str, float | str]) -> dict[str, Any]:
    """A schedule of equally long phases, each of which changes the configuration before it."""
    n_steps = N_RUNS * RUN_STEPS // len(phases)
    planned = [{"steps": n_steps, "changes": dict(changes)} for changes in phases]
    return {
        "search.method": "schedule",
        "search.schedule": {"source": "benchmarks.suite.real", "phases": planned},
    }


METHODS: dict[str, dict[str, Any]] = {
    "default": {},
    "cool_fast": _schedule({"temperature": 0.6, "lr": 2.0e-4}),
    "cool_cosine": _schedule({"temperature": 0.6, "lr": 2.0e-4, "lr_scheduler": "cosine"}),
    "cool_falls": _schedule({"temperature": 0.6, "lr": 2.0e-4}, {"lr": 5.0e-5}),
    "tpe": {"search.n_trials": N_RUNS},
    "pbt": {"search.population": 2},
    "expert": {"search.method": "llmzero"},
    "claude": {
        "search.method": "llmzero",
        "agents.backend": "claude",
        "agents.model": "claude-sonnet-5-5",
        "agents.price": [3.0, 15.0, 3.75, 0.3],
    },
}
"""Method -> dotted keys: the recipe; a static configuration; the same along a cosine to zero (its plan needs
`budget: steps`, so that its last step is known); the same with a quarter of the rate in the second half; TPE
with trials of one run each; population-based training of two members, each with two phases; the search with
rules and with a language model."""
_DEFAULT_METHODS = ("default", "cool_fast", "expert", "claude")
Item = tuple[str, object]
Kind = Callable[[random.Random], Item]
NUMBER, WORD = "Reply with the number only.", "Reply with the word only."


def _sums(low: int, high: int, operators: str) -> Kind:
    def make(draw: random.Random) -> Item:
        a, b, operator = draw.randint(low, high), draw.randint(low, high), draw.choice(operators)
        a, b = (max(a, b), min(a, b)) if operator == "-" else (a, b)
        return f"What is {a} {operator} {b}? {NUMBER}", {"+": a + b, "-": a - b, "*": a * b}[operator]

    return make


def _mixed(draw: random.Random) -> Item:
    return draw.choice((_sums(1, 30, "+"), _sums(10, 99, "+"), _sums(2, 60, "-"), _sums(2, 18, "*")))(draw)


def _larger(draw: random.Random) -> Item:
    a, b = draw.sample(range(10, 999), 2)
    return f"Which number is larger, {a} or {b}? {NUMBER}", max(a, b)


def _smallest(draw: random.Random) -> Item:
    some = draw.sample(range(10, 99), 3)
    return f"Which of the numbers {', '.join(map(str, some))} is the smallest? {NUMBER}", min(some)


def _middle(draw: random.Random) -> Item:
    some = draw.sample(range(10, 99), 3)
    asked = f"Sort the numbers {some[0]}, {some[1]} and {some[2]}. Which one is in the middle?"
    return f"{asked} {NUMBER}", sorted(some)[1]


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
    "middle of three": _middle,
    "next number": _next,
    "occurrences of a letter": _letter,
    "letters of a word": _length,
    "binary": _binary,
    "backwards": _backwards,
    "first in the alphabet": _alphabet,
    "sums, differences, products": _mixed,
}
"""Kind of question -> function that makes one. Sampled answers depend on this order."""


def main() -> None:
    """Measure and print, or write a plan."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("model", type=Path, nargs="?", help="model directory")
    parser.add_argument("--table", action="store_true", help="print the scores of the kept searches")
    parser.add_argument("--plan", metavar="NAME", help="write the plan of a comparison of that name")
    parser.add_argument("--pairs", nargs="+", choices=list(PAIRS), default=list(PAIRS))
    parser.add_argument("--methods", nargs="+", choices=list(METHODS), default=_DEFAULT_METHODS)
    parser.add_argument("--seeds", nargs="+", type=int, default=[203], help="201 and 202 are spent")
    parser.add_argument("--data", type=Path, default=Path("data/suite"))
    parser.add_argument("--keep", metavar="DIR", type=Path, help="keep the ended searches of this comparison")
    given = parser.parse_args()
    if given.keep is not None:
        if not given.keep.is_dir():
            parser.error(f"--keep: {given.keep} is not a directory; give that of a comparison")
        print(f"kept {', '.join(keep(given.keep)) or 'none: no search has ended'}")
        return
    if given.table:
        found = scores()
        print(f"{found}\n\n{leads(found.rows)}")
        return
    if given.model is None:
        parser.error("give MODEL, --keep or --table")
    if given.plan is None:
        print(base_accuracy(given.model))
        return
    try:
        directories = {pair: make(pair, given.data.absolute()) for pair in given.pairs}
    except LlmzeroError as error:
        sys.exit(f"real: {error}")
    base = given.data.absolute() / f"{given.plan}.base.yaml"
    base.write_text(to_yaml(recipe(given.model.absolute())), encoding="utf-8")
    plan = comparison(given.plan, directories, given.methods, given.seeds)
    sys.stdout.write(to_yaml({**plan, "base": str(base)}))


def make(pair: str, data: Path) -> Path:
    """Directory of a pair's task, made from a CSV file of its questions if it does not exist."""
    folder = data / f"real_{pair}"
    folder.mkdir(parents=True, exist_ok=True)
    draw, found = random.Random(pair), dict[str, object]()
    while len(found) < sum(SIZES.values()):
        question, truth = KINDS[PAIRS[pair]](draw)
        found[question] = truth
    with (folder / "questions.csv").open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([("question", "answer"), *found.items()])
    task = {
        "name": pair,
        "dir": str(folder / "task"),
        "files": "questions.csv",
        "prompt": "{question}",
        "answer": "answer",
        "reward": REWARDS.get(pair, "math"),
        "licence": "made up",
        **SIZES,
    }
    (folder / "task.yaml").write_text(to_yaml(task), encoding="utf-8")
    prepare_source_task(str(folder / "task.yaml"), [], TerminalConsole(stderr=True))
    return folder / "task"


def recipe(model: Path) -> dict[str, Any]:
    """The default recipe with the compute of a search."""
    found = read_yaml(presets.path_of(RECIPE))
    found["model"]["path"] = str(model)
    found["budget"] = {"runs": N_RUNS}
    found["phase"]["n_steps"] = RUN_STEPS
    return found


def comparison(
    name: str, directories: Mapping[str, Path], methods: Sequence[str], seeds: Sequence[int]
) -> dict[str, Any]:
    """The plan without its base."""
    return {
        "name": name,
        "tasks": [{"name": pair, "set": {"task.dir": str(path)}} for pair, path in directories.items()],
        "methods": [{"name": method, "set": METHODS[method]} for method in methods],
        "seeds": list(seeds),
        "max_hours": 48.0,
    }


def keep(directory: Path, archive: Path = SEARCHES) -> list[str]:
    """Add the finished searches of a comparison to the archive, replacing earlier ones of the same names, and
    return their names. Paths of this machine become paths of a checkout."""
    added = []
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        with tarfile.open(archive) as kept:
            kept.extractall(folder, filter="data")
        for search in sorted(path.parents[1] for path in directory.absolute().glob("*/final/best.parquet")):
            config, target = read_yaml(search / "search.yaml"), folder / search.name
            paths = {
                str(config["storage"]): f"runs/{directory.name}",
                str(config["task"]["dir"]): f"data/suite/real_{search.name.split('-')[0]}/task",
                str(config["model"]["path"]): "models/SmolLM2-135M-Instruct",
                f"{Path(presets.__file__).parents[2]}/": "",
            }
            shutil.rmtree(target, ignore_errors=True)
            for path in (found for pattern in KEPT for found in search.glob(pattern)):
                copy = target / path.relative_to(search)
                copy.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(path, copy)
                if path.suffix in (".yaml", ".json"):
                    text = path.read_text(encoding="utf-8")
                    for own, theirs in paths.items():
                        text = text.replace(own, theirs)
                    copy.write_bytes(_event(text) if path.parent.name == "journal" else text.encode())
            added.append(search.name)
        with tarfile.open(archive, "w:xz", preset=9) as packed:
            for path in sorted(folder.iterdir()):
                packed.add(path, path.name, filter=_anonymous)
    return added


def _anonymous(member: tarfile.TarInfo) -> tarfile.TarInfo:
    """Member of an archive without time and owner."""
    return member.replace(mtime=0, uid=0, gid=0, uname="", gname="", deep=False)


def _event(text: str) -> bytes:
    """File of a journal event with replaced paths and its new checksum."""
    body = event_file.unpack(json.loads(text), None, trusted=True)
    return event_file.encode(body.event, body.name, journal=body.journal, writer=body.writer)


def scores(archive: Path = SEARCHES) -> TextTable:
    """Table of the kept searches: test accuracy of the strategy and of the base model, training steps, and
    each validation of the first phase. A dash marks a figure that was not measured."""
    rows = []
    with tempfile.TemporaryDirectory() as folder, tarfile.open(archive) as kept:
        kept.extractall(folder, filter="data")
        for directory in sorted(Path(folder).iterdir()):
            facts = SearchFacts(directory)
            base, best = facts.final("base"), facts.final("best")
            first = [point for point in load_points(facts.storage, 0) if point.val_score is not None]
            validations = " ".join(f"{point.step}: {point.val_score:.3f}" for point in first)
            measured = [
                None if one is None or one.measured is None else one.measured.mean for one in (base, best)
            ]
            figures = ("–" if one is None else f"{one:.3f}" for one in measured)
            steps = sum(run.outcome.steps_done for run in facts.runs.values() if run.outcome is not None)
            rows.append((*directory.name.rsplit("-", 2), *figures, str(steps), validations))
    head = ("pair", "method", "seed", "base, test", "test", "steps", "validations of the first phase")
    return table(head, rows, right=range(2, 6))


def leads(rows: Sequence[Sequence[str]]) -> TextTable:
    """Table of each method's mean test accuracy over the seeds that it shares with the default and the rules
    (at least two), and of its leads over both, ± one standard error over these seeds."""
    test = {(pair, method, seed): float(score) for pair, method, seed, _, score, *_ in rows if score != "–"}
    found = []
    for pair, method in ((pair, method) for pair in PAIRS for method in METHODS):
        seeds = [seed for name, own, seed in test if (name, own) == (pair, method)]
        seeds = [seed for seed in seeds if {(pair, "default", seed), (pair, "expert", seed)} <= set(test)]
        if len(seeds) < 2:
            continue
        own, *others = ([test[pair, m, seed] for seed in seeds] for m in (method, "default", "expert"))
        cells = []
        for other in others:
            gains = [a - b for a, b in zip(own, other, strict=True)]
            error = stdev(gains) / len(gains) ** 0.5
            cells.append(f"{fmean(gains):+.3f} ± {error:.3f}" if any(gains) else "")
        found.append((pair, method, str(len(seeds)), f"{fmean(own):.3f}", *cells))
    return table(("pair", "method", "seeds", "test", "over the default", "over the rules"), found)


def base_accuracy(directory: Path) -> str:
    """Table of the base model's accuracy on each kind of question."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from llmzero_ray.tasks.greedy_accuracy import generate
    from llmzero_ray.tasks.rewards import exact_match, math_answer, regex_match

    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.bfloat16).eval()
    tokenizer, rows = AutoTokenizer.from_pretrained(directory), []
    one_number = partial(regex_match.compute_score, **ONE_NUMBER["regex"])
    judged: list[tuple[str, Callable[..., Any]]] = [
        (name, exact_match.compute_score if kind in (_backwards, _alphabet) else math_answer.compute_score)
        for name, kind in KINDS.items()
    ]
    judged += [(PAIRS[pair], one_number) for pair in REWARDS]
    for name, score in judged:
        draw = random.Random(name)
        items = [KINDS[name](draw) for _ in range(N_ITEMS)]
        shares, first = [], ""
        for sampling in ({"do_sample": False}, {"do_sample": True, "temperature": 1.0, "top_k": 0}):
            answers = generate(model, tokenizer, [prompt for prompt, _ in items], N_TOKENS, **sampling)
            right = [
                score("", answer, str(truth))["score"]
                for answer, (_, truth) in zip(answers, items, strict=True)
            ]
            shares.append(f"{sum(right) / N_ITEMS:.3f}")
            first = first or answers[0]
        rows.append(
            (f"{name}, one number" if score is one_number else name, *shares, first.replace("\n", " "))
        )
    return table(("question", "greedy", "sampled", "an answer"), rows, right=range(1, 3))


if __name__ == "__main__":
    main()
