"""Moves for each finding: changes of hyper-parameters that belong together, each with its reason.

The catalogue is the expert's knowledge. For every kind of finding, the first set of moves is the most likely
interpretation. The others interpret the same curves differently, so that two children of a node do not try
the same thing. A set may hold one move or none: training on unchanged is also an interpretation. Moves are
relative (factors, small shifts), because a tiny model trains at 1e-3 and a large one at 5e-5. Sources: the
transitions of the LLMZero paper (Tables 8-11), its human knowledge (App. F), and small real runs. In those
runs, smaller steps at a lower temperature gained where larger ones at a higher temperature lost, and raising
the learning rate once gained more often than raising it twice.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from llmzero_ray.dynamics.diagnosis import Finding, Kind
from llmzero_ray.dynamics.gains import DESTROYED
from llmzero_ray.hyperparameters.verl_keys import (
    ADV_NORM,
    CLIP_HIGH,
    CLIP_LOW,
    ENTROPY_COEFF,
    GRAD_CLIP,
    KL_LOSS_COEF,
    LR,
    LR_SCHEDULER,
    MAX_RESPONSE,
    MINI_BATCH,
    PPO_EPOCHS,
    ROLLOUT_N,
    TEMPERATURE,
    TRAIN_BATCH,
    WARMUP_RATIO,
    WEIGHT_DECAY,
)
from llmzero_ray.records import HyperparameterValue


@dataclass(frozen=True, kw_only=True)
class Move:
    """One change relative to the trained configuration: `value * factor + shift`, or `to`."""

    key: str
    reason: str
    factor: float = 1.0
    shift: float = 0.0
    to: HyperparameterValue = None


@dataclass(frozen=True, kw_only=True)
class MoveSet:
    """Moves that belong together, with the reason."""

    name: str
    why: str
    moves: tuple[Move, ...]
    needs: str = ""
    """Key that must change; without it, the other moves have no reason."""


def _lr(factor: float, reason: str) -> Move:
    return Move(key=LR, factor=factor, reason=reason)


def _kl(factor: float, reason: str) -> Move:
    return Move(key=KL_LOSS_COEF, factor=factor, reason=reason)


def _temperature(shift: float, reason: str) -> Move:
    return Move(key=TEMPERATURE, shift=shift, reason=reason)


def _clip_high(shift: float, reason: str) -> Move:
    return Move(key=CLIP_HIGH, shift=shift, reason=reason)


def _more_rollouts(rollouts: float = 1.5) -> Move:
    return Move(key=ROLLOUT_N, factor=rollouts, reason="larger groups estimate advantages with less noise")


def _fewer_prompts(factor: float = 0.75) -> Move:
    return Move(key=TRAIN_BATCH, factor=factor, reason="fewer prompts pay for the larger groups")


_NORM = Move(
    key=ADV_NORM, to=True, reason="scaling by the group's spread keeps weak contrasts from vanishing"
)

_STEP_BACK = MoveSet(
    name="step back, hold tighter",
    why="Steps were too large for the trust region: halve them, and let the KL pull back harder.",
    moves=(
        _lr(0.5, "smaller updates cannot leave the region where the rollouts are informative"),
        _kl(5.0, "a strong pull to the reference stops the drift that preceded the fall"),
        _temperature(-0.1, "cooler rollouts keep unlikely tokens, which drive the drift, out of the batch"),
        _clip_high(-0.03, "a narrower range caps what one batch may do to likely tokens"),
        Move(key=GRAD_CLIP, factor=0.5, reason="one extreme batch must not move the policy far"),
    ),
)
UNCHANGED = MoveSet(
    name="unchanged, longer",
    why="Nothing speaks against these settings: train on with them.",
    moves=(),
)
"""No move: a candidate after most findings. From another node's checkpoint it undoes later changes."""
_ANNEAL = MoveSet(
    name="anneal",
    why="Smaller steps from here: in small real runs they gained where larger ones lost.",
    moves=(
        _lr(0.5, "half the step halves the noise of the policy around its optimum"),
        _temperature(-0.1, "cooler rollouts are nearer to the greedy answers that are scored"),
    ),
)
_TAKE_BACK = replace(
    _ANNEAL,
    name="take the raise back",
    why="The raised rate has gained. Kept on, it lost in most small real runs: settle with half of it.",
)
_COOL_DOWN = MoveSet(
    name="smaller steps",
    why="The phase went down where it should have gone up.",
    moves=(
        _lr(0.5, "smaller updates undo less of what is learnt"),
        _temperature(-0.2, "cooler rollouts are nearer to the greedy answers that are scored"),
    ),
)
_QUARTER = MoveSet(
    name="a quarter of the step",
    why="The same noise, met by the step alone.",
    moves=(_lr(0.25, "a quarter of the step leaves a quarter of its noise"),),
)
_SLOW_DOWN = replace(
    _QUARTER,
    name="slow down",
    why="From here a somewhat smaller step lost as well: a quarter of the step that led here.",
)
_MUCH_SMALLER = MoveSet(
    name="much smaller steps",
    why="The first phase unlearnt what the base model could do: the usual correction, twice at once.",
    moves=(
        _lr(0.25, "half of a rate that loses from the start lost as well, only more slowly"),
        _temperature(-0.2, "cooler rollouts are nearer to the greedy answers that are scored"),
    ),
)
_FAR_SMALLER = MoveSet(
    name="far smaller steps",
    why="A few steps destroyed what the start could do: the usual correction, three times at once.",
    moves=(
        _lr(0.125, "half of a rate that destroys the start destroys it too, in twice as many steps"),
        _temperature(-0.3, "cooler rollouts are nearer to the greedy answers that are scored"),
    ),
)
_DECAY = MoveSet(
    name="decay within the phase",
    why="The step that learnt this far, brought down to nothing by the end of the phase.",
    moves=(Move(key=LR_SCHEDULER, to="cosine", reason="the last steps settle what the first ones found"),),
)
_WARM_UP = MoveSet(
    name="warm up first",
    why="A resumed phase begins with an empty optimizer: its first steps are the least informed ones.",
    moves=(
        Move(key=WARMUP_RATIO, to=0.3, reason="the optimizer's moments settle before full steps are taken"),
    ),
)
_MORE_UPDATES = MoveSet(
    name="more updates of the same rollouts",
    why="The rollouts hold more than one update takes from them: two per step, within the clip range.",
    moves=(Move(key=MINI_BATCH, factor=0.5, reason="two updates per step from the same rollouts"),),
)
_SECOND_PASS = MoveSet(
    name="a second pass",
    why="The same as more updates, with all of the batch in each of them.",
    moves=(
        Move(key=PPO_EPOCHS, to=2, reason="a second pass over the step's rollouts"),
        _lr(0.7, "two passes move the policy further than one"),
    ),
)
_PRESS_ON = MoveSet(
    name="press on",
    why="The policy is learning: loosen the pull, and keep the step size that works.",
    moves=(_kl(0.5, "a weaker pull lets the policy go where the reward leads it"),),
)
_LARGER_GROUPS = MoveSet(
    name="larger groups",
    why="The direction is right and its estimate noisy: more rollouts of each prompt.",
    moves=(_more_rollouts(),),
)
_PUSH = MoveSet(
    name="push out of the plateau",
    why="The signal is too weak: larger steps on more varied rollouts, with more KL to hold them.",
    moves=(
        _lr(2.0, "vanishing updates need a larger step to leave the plateau"),
        _kl(2.0, "holds the larger steps, so that leaving the plateau is not a divergence"),
        _temperature(0.1, "warmer rollouts make groups differ again, which is where gradients come from"),
    ),
)
_EXPLORE = MoveSet(
    name="explore",
    why="A policy that repeats itself finds nothing new: warmer rollouts, a weaker pull, the same step.",
    moves=(
        _temperature(0.15, "more varied answers give groups contrast"),
        _kl(0.5, "the pull to the reference suppresses answers that are new"),
        _clip_high(0.05, "a wider upper range lets unlikely good tokens grow"),
    ),
)
_WIDEN = MoveSet(
    name="widen before settling",
    why="Slower gains read as a policy that narrows too early: more varied, larger groups at the same step.",
    moves=(
        _temperature(0.1, "keeps alternatives in the batch while there is room to improve"),
        _more_rollouts(),
        _fewer_prompts(),
        _kl(0.7, "a weaker pull, since nothing has drifted"),
    ),
)
_QUIETER = MoveSet(
    name="quieter updates",
    why="Less of the reward's noise in each update: smaller steps, held closer.",
    moves=(
        _lr(0.5, "the swings scale with the step"),
        _kl(2.0, "damps the swings between validations"),
        _temperature(-0.1, "cooler rollouts scatter less"),
    ),
)
_AVERAGE = MoveSet(
    name="average more",
    why="The same noise seen as an estimate with too few samples: larger groups and clipped gradients.",
    moves=(
        _more_rollouts(),
        _lr(0.7, "a slightly smaller step, since most of the noise is met by the larger groups"),
        Move(key=GRAD_CLIP, factor=0.5, reason="cuts the outliers that one batch contributes"),
    ),
)
_FASTER = MoveSet(
    name="larger steps",
    why="The direction is right and the pace is low: larger steps, with the KL raised beforehand.",
    moves=(
        _lr(2.0, "the run is stable enough for twice the step"),
        _kl(2.0, "guards the larger step"),
        _NORM,
    ),
)
_REGULARISE = MoveSet(
    name="regularise",
    why="It fits the training prompts better than new ones: decay the adapter, hold closer.",
    moves=(
        Move(key=WEIGHT_DECAY, factor=5.0, reason="pulls the adapter back from prompt-specific solutions"),
        _kl(2.0, "keeps what the base model generalises with"),
        _lr(0.5, "fits the training prompts less closely per step"),
        _temperature(0.05, "more varied rollouts are harder to memorise"),
    ),
)
_RECOVER_ENTROPY = MoveSet(
    name="recover entropy",
    why="The distribution narrowed too early: loosen what narrows it, and go on in smaller steps.",
    moves=(
        _kl(0.5, "under a tight pull the policy could only sharpen"),
        _lr(0.6, "the narrowing was driven by large steps"),
        _temperature(0.1, "warmer rollouts show the policy alternatives again"),
        _clip_high(0.05, "lets unlikely tokens gain probability"),
        Move(key=CLIP_LOW, shift=-0.05, reason="keeps tokens from being pushed out altogether"),
    ),
)
_WAKE = MoveSet(
    name="train at all",
    why="The updates have no effect: take steps that count, and let them.",
    moves=(
        _lr(4.0, "the learning rate left the policy where it was"),
        _kl(0.5, "nothing has drifted, so nothing needs holding"),
        _NORM,
    ),
)
_MUCH_LARGER = MoveSet(
    name="much larger steps",
    why="The policy is still close to the base model: steps that count, on answers nearer the scored ones.",
    moves=(
        _lr(4.0, "a KL this small after a whole phase says that the steps are too small"),
        _kl(0.5, "nothing has drifted, so nothing needs holding"),
        _temperature(-0.15, "cooler rollouts are right more often, which is where these steps should lead"),
    ),
)
_WAKE_VARIED = MoveSet(
    name="steps and variety",
    why="If larger steps alone do not move it, the groups hold no contrast: vary the rollouts as well.",
    moves=(
        _lr(8.0, "the learning rate left the policy where it was"),
        _temperature(0.1, "groups of equal answers give no gradient"),
        _more_rollouts(),
    ),
)
_FIND_REWARD = MoveSet(
    name="find rewarded answers",
    why="Without one rewarded answer in a group there is no gradient: sample wider and more often.",
    moves=(
        _temperature(0.15, "a wider search meets a rewarded answer sooner"),
        _more_rollouts(2.0),
        _fewer_prompts(0.6),
        _kl(0.5, "the reference does not know the answers either"),
    ),
)
_COOL_SEARCH = MoveSet(
    name="sample nearer the mode",
    why="The same curve if sampling is too hot to get a whole answer right: cool it, and take smaller steps.",
    moves=(
        _temperature(-0.2, "whole answers are right more often near the mode"),
        _lr(0.5, "rare rewards make large, random updates"),
    ),
)
_GENTLER = MoveSet(
    name="gentler, with larger groups",
    why="A milder reading: the drift came from noisy advantages rather than from the step alone.",
    moves=(
        _lr(0.7, "a somewhat smaller step"),
        _kl(2.0, "a somewhat stronger pull"),
        _more_rollouts(),
    ),
)
_LOOSEN = MoveSet(
    name="further the other way",
    why="The tightening starved learning: beyond taking it back, a larger step and a weaker pull.",
    moves=(
        _lr(1.5, "the earlier step still improved, and a smaller one did not"),
        _kl(0.5, "the stronger pull cost more than it protected"),
    ),
)
_GREEDY_FOLLOWS = MoveSet(
    name="help the mode follow",
    why="Samples already improve while greedy answers do not: larger steps move the mode to them.",
    moves=(
        _lr(1.5, "the direction is right, the distance is not covered yet"),
        _temperature(-0.1, "samples nearer the mode train the mode"),
        _kl(0.7, "a weaker pull, since the reference holds the old mode"),
    ),
)
_NO_BONUS = MoveSet(
    name="no entropy bonus",
    why="The bonus pays for entropy by itself, and nothing else was gained: take it away.",
    moves=(Move(key=ENTROPY_COEFF, to=0.0, reason="without the bonus only the reward is learnt"),),
)
_LET_THEM_END = MoveSet(
    name="the same cap, cooler",
    why=(
        "No setting fixes a wrong end token or chat template: check both before this phase. If they are "
        "right, cooler answers end where the model would end them."
    ),
    moves=(Move(key=TEMPERATURE, factor=0.8, reason="near the mode an answer meets its end more often"),),
)
_STAY_NEAR = MoveSet(
    name="stay near the base model",
    why="Nothing is built on a score that may be worth nothing: until the reward is checked, keep close.",
    moves=(
        _kl(5.0, "what a flawed reward pays for lies away from the base model"),
        _lr(0.5, "smaller steps are slower to find it"),
    ),
)
_SMALL_STEPS = replace(
    _STAY_NEAR,
    name="small steps only",
    moves=(_lr(0.25, "a quarter of the step stays near the start for as long as the reward is in doubt"),),
)

CATALOGUE: Mapping[Kind, tuple[MoveSet, ...]] = {
    "doubtful": (_STAY_NEAR, _SMALL_STEPS),
    "dead": (_WAKE, _WAKE_VARIED),
    "hardly_moves": (_MUCH_LARGER, _FASTER, UNCHANGED),
    "collapse": (_STEP_BACK, _QUARTER, _GENTLER),
    "kl_spike": (_STEP_BACK, _GENTLER, _QUARTER),
    "entropy_collapse": (_RECOVER_ENTROPY, _EXPLORE),
    "entropy_climb": (_STEP_BACK, _QUARTER, _GENTLER),
    "never_ends": (_LET_THEM_END, _COOL_SEARCH),
    "no_reward": (_FIND_REWARD, _COOL_SEARCH),
    "no_contrast": (_EXPLORE, _REGULARISE, _LARGER_GROUPS),
    "overfit": (_REGULARISE, _QUIETER, UNCHANGED),
    "noisy": (_QUIETER, _QUARTER, _AVERAGE),
    "too_conservative": (UNCHANGED, _LOOSEN, _QUARTER),
    "too_aggressive": (_COOL_DOWN, UNCHANGED, _QUARTER),
    "too_fast": (_SLOW_DOWN, _COOL_DOWN, _DECAY),
    "regressed": (UNCHANGED, _COOL_DOWN, _QUARTER),
    "declining": (_COOL_DOWN, _QUARTER, _DECAY, _WARM_UP),
    "take_off": (UNCHANGED, _GREEDY_FOLLOWS, _LARGER_GROUPS),
    "warming_up": (UNCHANGED, _FASTER, _LARGER_GROUPS),
    "plateau_weak": (_PUSH, _MORE_UPDATES, _EXPLORE),
    "plateau_noisy": (_COOL_DOWN, _QUARTER, _AVERAGE),
    "slow": (_FASTER, UNCHANGED, _MORE_UPDATES, _WIDEN),
    "steady": (UNCHANGED, _FASTER, _MORE_UPDATES, _WIDEN),
    "raised": (_TAKE_BACK, UNCHANGED, _QUARTER, _DECAY),
    "converging": (_ANNEAL, _QUARTER, UNCHANGED, _DECAY),
    "improving": (UNCHANGED, _ANNEAL, _PRESS_ON, _LARGER_GROUPS),
    "solved": (_ANNEAL, UNCHANGED, _QUARTER),
    "unknown": (UNCHANGED, _QUIETER, _FASTER),
}
GENERAL: tuple[MoveSet, ...] = (
    _QUIETER,
    _AVERAGE,
    _DECAY,
    _WARM_UP,
    _LARGER_GROUPS,
    _PRESS_ON,
    _EXPLORE,
    _MORE_UPDATES,
    _SECOND_PASS,
    _FASTER,
    _REGULARISE,
)
"""Sets of moves that come after those of any finding."""
WIDE_GAP = 0.75
"""Accuracy of sampled answers / accuracy of greedy ones, below which rollouts differ much from the scored
answers."""
NARROW_GAP = 0.95
"""The same ratio, from which rollouts hardly differ from greedy answers."""


def move_sets(finding: Finding, *, again: bool = False) -> tuple[MoveSet, ...]:
    """Interpretations of a finding, most likely first. `again`: a larger learning rate has already lost."""
    if finding.kind == "truncated":
        return _longer_answers(finding.severity)
    if finding.kind == "entropy_climb" and finding.severity > 0.0:
        return (_NO_BONUS, *CATALOGUE[finding.kind])
    if finding.kind in ("declining", "collapse", "kl_spike") and finding.severity >= DESTROYED:
        return (_FAR_SMALLER, *CATALOGUE[finding.kind])
    if finding.kind == "declining" and finding.severity > 0.0 and not again:
        return (_MUCH_SMALLER, *CATALOGUE[finding.kind])
    return CATALOGUE[finding.kind]


def suited(move_set: MoveSet, greedy: float | None, sampled: float | None) -> MoveSet:
    """The set with its temperature moves adapted to the gap between greedy and sampled accuracy.

    If sampled answers are far worse, moves that raise the temperature are dropped and those that lower it are
    doubled. If they are as good, moves that lower it are dropped, because they cannot help. Without both
    accuracies the set is unchanged.
    """
    if greedy is None or sampled is None or greedy <= 0:
        return move_set
    ratio, fitted = sampled / greedy, []
    for move in move_set.moves:
        warmer = move.key == TEMPERATURE and move.shift > 0
        cooler = move.key == TEMPERATURE and move.shift < 0
        if (warmer and ratio < WIDE_GAP) or (cooler and ratio >= NARROW_GAP):
            continue
        double = cooler and ratio < WIDE_GAP and move.shift > -0.2
        fitted.append(replace(move, shift=2 * move.shift) if double else move)
    return replace(move_set, moves=tuple(fitted))


def _longer_answers(share: float) -> tuple[MoveSet, ...]:
    """Sets that raise the response cap in proportion to the share of cut-off answers."""
    factor = 2.0 if share >= 0.4 else 1.5 if share >= 0.15 else 1.17
    reason = f"{share:.0%} of the answers were cut off before their end and scored as wrong"
    longer = Move(key=MAX_RESPONSE, factor=factor, reason=reason)
    use_it = MoveSet(
        name="longer answers",
        needs=MAX_RESPONSE,
        why="The cap, not the policy, limits the score: raise it, and loosen the pull so that it is used.",
        moves=(
            longer,
            _kl(0.6, "longer answers are far from the reference, which should not hold them back"),
            _lr(0.8, "a changed length distribution makes early updates noisier"),
        ),
    )
    steady = MoveSet(
        name="longer answers, larger groups",
        needs=MAX_RESPONSE,
        why="The same, but the longer answers are met with better estimates instead of a looser pull.",
        moves=(longer, _more_rollouts(), _temperature(-0.05, "cooler rollouts ramble less")),
    )
    return (use_it, steady)
