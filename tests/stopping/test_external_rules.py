"""Stop rules of other packages: what `stopper.rules` takes, and what a broken rule does."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import logging
import math
from pathlib import Path
from typing import Any

import pytest

from llmzero_ray.config import StopperSettings, parse_config
from llmzero_ray.errors import ConfigError
from llmzero_ray.launch.preflight import check_backends
from llmzero_ray.records.agents import NodeView
from llmzero_ray.records.metrics import Curves
from llmzero_ray.stopping.phase_monitor import PhaseMonitor
from llmzero_ray.stopping.policy import StoppingPolicy
from llmzero_ray.stopping.rules import StopRule, make_rules
from tests.agents import curves as c
from tests.searches import scripted_search
from tests.stopping.reports import sound


class Answers:
    """A rule whose answer a test decides; an exception is raised."""

    def __init__(self, answer: Any) -> None:
        self.answer, self.n_calls = answer, 0

    def check(self, phase: NodeView) -> str | None:
        self.n_calls += 1
        if isinstance(self.answer, Exception):
            raise self.answer
        answer: str | None = self.answer
        return answer


class SeesOwnMetric:
    """Reads a metric that no shipped rule reads."""

    def check(self, phase: NodeView) -> str | None:
        return "seen" if "perf/mine" in phase.curves.metrics else None


def always(_: StopperSettings) -> StopRule:
    return Answers("its\nreason")


def sees(_: StopperSettings) -> StopRule:
    return SeesOwnMetric()


def without_a_method(_: StopperSettings) -> object:
    return object()


def cannot_be_made(_: StopperSettings) -> StopRule:
    raise ValueError("no threshold")


@pytest.fixture
def _always(monkeypatch: pytest.MonkeyPatch) -> None:
    """An installed package registers the rule `always`."""
    point = importlib.metadata.EntryPoint(
        name="always", value=f"{__name__}:always", group="llmzero_ray.stop_rules"
    )

    def found(**wanted: str) -> Any:
        return importlib.metadata.EntryPoints((point,)).select(**wanted)

    monkeypatch.setattr("llmzero_ray.utils.plugins.entry_points", found)


def policy(*rules: str) -> StoppingPolicy:
    return StoppingPolicy(StopperSettings(rules=list(rules)))


@pytest.mark.usefixtures("_always")
@pytest.mark.parametrize("name", ["always", f"{__name__}:always"])
def test_a_rule_ends_a_phase_under_its_name_with_its_reason_in_one_line(name: str) -> None:
    decision = policy(name).check_rules(c.node(c.csum_steady()))
    assert decision is not None
    assert (decision.stop, decision.rule, decision.reason, decision.hard) == (True, name, "its reason", False)


def test_a_value_that_is_not_finite_comes_before_rules_of_others() -> None:
    broken = Curves(steps=(1,), metrics={"actor/pg_loss": (math.nan,)})
    decision = policy(f"{__name__}:always").check_rules(c.node(broken))
    assert decision is not None
    assert (decision.rule, decision.hard) == ("non_finite", True)


def test_a_rule_of_others_sees_every_metric() -> None:
    def verdict(*rules: str) -> object:
        points = [dataclasses.replace(each, metrics={"perf/mine": 1.0}) for each in sound(3)]
        return PhaseMonitor(policy(*rules), c.node(Curves())).add(points)

    assert verdict(f"{__name__}:sees") is not None
    assert verdict() is None


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (RuntimeError("lost its file"), "RuntimeError: lost its file"),
        (True, "TypeError: check gave a bool; must be a text or None"),
    ],
)
def test_a_rule_that_fails_is_logged_once_and_left_out_and_the_others_go_on(
    answer: Any, message: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    rule = Answers(answer)
    monkeypatch.setattr(f"{__name__}.sees", lambda _: rule)
    stopping = policy(f"{__name__}:sees", f"{__name__}:always")
    with caplog.at_level(logging.ERROR, "llmzero_ray.stopping"):
        for _ in range(3):
            decision = stopping.check_rules(c.node(c.csum_steady()))
            assert decision is not None
            assert decision.rule == f"{__name__}:always"
    assert rule.n_calls == 1
    assert len(caplog.records) == 1
    assert f"stop rule {__name__}:sees failed and is left out" in caplog.text
    assert message in caplog.text


@pytest.mark.usefixtures("_always")
@pytest.mark.parametrize(
    ("rules", "message"),
    [
        (["alway"], "stopper.rules is 'alway'; must be always, .*Did you mean 'always'"),
        (["collapse"], "stopper.rules names 'collapse', which is among the rules already"),
        (["always", "always"], "stopper.rules names 'always', which is among the rules already"),
        ([f"{__name__}:nothing"], "nothing', which cannot be loaded"),
        ([f"{__name__}:SEEN"], "SEEN', which is a int; must be callable"),
        ([f"{__name__}:cannot_be_made"], "which cannot be made: ValueError: no threshold"),
        ([f"{__name__}:without_a_method"], "gives a value of type object without check; must have check"),
    ],
)
def test_a_rule_that_cannot_work_is_refused_in_one_sentence_before_the_search_starts(
    rules: list[str], message: str, tmp_path: Path
) -> None:
    config = parse_config(scripted_search(tmp_path, tmp_path, stopper={"rules": rules}))
    with pytest.raises(ConfigError, match=message) as error:
        check_backends(config, 0.0, [].append)
    assert "\n" not in str(error.value)


SEEN = 1


def test_no_further_rule_is_the_default_and_what_is_no_name_is_refused() -> None:
    assert list(make_rules(StopperSettings())) == ["non_finite", "collapse", "unmoved"]
    with pytest.raises(ConfigError, match=r"stopper\.rules"):
        parse_config({"name": "x", "stopper": {"rules": ["a name"]}})
