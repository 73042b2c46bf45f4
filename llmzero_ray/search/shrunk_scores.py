"""Validation scores with the luck taken out, as far as it can be told: a Gaussian filter from phase to phase.

The highest of many validation scores is in part luck with the rows. Two things tell luck from skill: what the
phases before it scored, and how far a phase's answers differ from those of its start on the same rows. The
model is a state for each policy, its true score, and a measured score that adds the luck of the rows:

    true'     = true + gain                 gain: normal, standard deviation `gain_sd`
    measured' = true' + luck'               luck: normal, standard deviation the score's standard error e
    luck'     = c luck + new luck           c = 1 - p² / 2 e², p the standard error of the paired difference

A phase that answers as its start did (p = 0) keeps that one's luck, so that its gain counts whole; one that
answers anew has other luck. The shrunk score is the expected true score given all measured ones along the
phases that lead to the policy (a Kalman filter). A phase from the base model keeps its measured score, as
nothing is known before it. Luck is that of the rows: what another seed of the same phase would change is not
in it, nor is the choice of the best step.

Not here: what is chosen by these scores (tree_search.py), where the errors come from (metric_files.py).
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class _Estimate:
    """What is known of one policy."""

    measured: float
    mean: float
    """Of the true score."""
    variance: float


@dataclass(frozen=True, kw_only=True)
class _Phase:
    before: _Estimate | None
    """The policy it began with; None: nothing is known of it."""
    error: float
    paired_error: float
    gain_variance: float

    def at(self, score: float) -> _Estimate:
        """What is known of its policy that scored so."""
        before = self.before
        if before is None:
            return _Estimate(measured=score, mean=score, variance=self.error**2)
        kept = max(0.0, 1 - self.paired_error**2 / (2 * self.error**2))
        shared = (1 - kept) * before.variance + self.gain_variance
        spread = (1 - kept) * shared + kept * self.gain_variance + self.error**2 * (1 - kept**2)
        surprise = score - (1 - kept) * before.mean - kept * before.measured
        share = shared / spread
        return _Estimate(
            measured=score,
            mean=before.mean + share * surprise,
            variance=before.variance + self.gain_variance - share * shared,
        )


class ShrunkScores:
    """The shrunk scores of one search's phases, told in the order in which they end."""

    def __init__(self, gain_sd: float) -> None:
        """`gain_sd`: how large true gains of phases usually are, in units of the score; above 0."""
        self._gain_variance = gain_sd**2
        self._phases: dict[int, _Phase] = {}

    def tell(
        self,
        node: int,
        score: float | None,
        *,
        start: float | None,
        error: float,
        paired_error: float,
        source: int | None,
    ) -> float | None:
        """The shrunk score of a phase that has ended; None without a score.

        `score` is its best validation score, with standard error `error` > 0; `start` that of the checkpoint
        it began with (None: not measured, so that nothing is known before it), `paired_error` the standard
        error of their difference over the same rows. `source` is the node that was resumed; None: the base
        model.
        """
        resumed = None if source is None else self._phases.get(source)
        phase = _Phase(
            before=None if resumed is None or start is None else resumed.at(start),
            error=error,
            paired_error=paired_error,
            gain_variance=self._gain_variance,
        )
        self._phases[node] = phase
        return None if score is None else phase.at(score).mean
