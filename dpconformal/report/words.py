"""A learner in the words of somebody who has never heard of it."""

from typing import Any

from dpconformal.heads import Head

_KINDS = {
    "Exact": "A belief about the next score: a prior guess, mixed with every score seen so far",
    "Quantized": "A belief about the next score: a prior guess, mixed with the scores seen so far in {bins} bins",
    "Aggregate": "Several beliefs about the next score, mixed by how well each has done so far",
    "Hierarchical": "A belief for each group: that of its parent, mixed with the group's own scores",
    "ERM": "The empirical distribution of all scores so far",
    "SlidingERM": "The empirical distribution of the last {window} scores",
    "DiscountedERM": "The empirical distribution of all scores so far, older ones counting less",
    "SplitConformal": "Split conformal prediction: the empirical distribution of all scores so far, rounded upwards",
    "NExCP": "Weighted conformal prediction: recent scores count more, rounded upwards",
    "OGD": "Online gradient descent: each threshold moves up after a miss and down after a hit",
    "MultiOGD": "Online gradient descent on a grid of levels: the nearest level of the grid answers",
    "SFOGD": "Scale-free online gradient descent: each threshold moves up after a miss and down after a hit",
    "SAOCP": "Strongly adaptive online conformal prediction: many gradient methods of different ages, mixed",
    "ACI": "Adaptive conformal inference: the level that is asked of recent scores is adjusted after every round",
    "DtACI": "Dynamically tuned adaptive conformal inference: several adjustment rates, mixed",
    "AgACI": "Aggregated adaptive conformal inference: several adjustment rates, mixed",
    "PID": "Conformal PID control: thresholds are steered by past misses",
    "MVP": "Multivalid prediction: thresholds are chosen among buckets, so that each of them covers as it should",
    "MultiMVP": "Multivalid prediction on a grid of levels: the nearest level of the grid answers",
    "Credible": "A credible bound on the threshold",
    "Corrected": "A threshold with a correction for small samples",
}


def in_words(learner: Any) -> str:
    """Describe a learner in a sentence."""
    if learner is None:
        return "Thresholds of a method that the run does not name"
    name = type(learner).__name__
    said = _KINDS.get(name)
    if said is None:
        return name
    sizes = {key: getattr(learner, key, None) for key in ("bins", "window")}
    said = said.format(**{key: "as many as √(rounds)" if size is None else size for key, size in sizes.items()})
    discount = getattr(learner, "discount", None)
    if discount is not None:
        said += (
            f". Each round takes {1 - float(discount):.3g} of their weight from all earlier scores, so the past fades"
        )
    if isinstance(learner, Head):
        inner = in_words(learner.learner)
        return f"{said} ({name}), from this belief: {inner[0].lower()}{inner[1:]}"
    return f"{said} ({name})"


def in_code(learner: Any, most: int = 400) -> str:
    """Write a learner as Python does, cut where it is too long to read."""
    text = "" if learner is None else " ".join(repr(learner).split())
    return text if len(text) <= most else text[: most - 1] + "…"
