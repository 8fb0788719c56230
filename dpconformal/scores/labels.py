"""What scores of class labels share: a score for every class, labels picked from them, masks made of them."""

from typing import Any, ClassVar

import jax.numpy as jnp
import numpy as np

from dpconformal.scores.base import namespace, namespace_of_sets, read_thresholds, reals, same_shape
from dpconformal.validation import Numbers, as_numbers, complain_at, is_traced


class LabelScore:
    """
    What scores of class labels share: a score for every class, from which labels are picked and masks are made.

    Predictions are probabilities of shape (..., K), labels whole numbers of shape (...) from 0 to K - 1, and the mask
    for thresholds of shape (..., A) has the shape (..., A, K).
    """

    sides: ClassVar[int] = 1
    randomized: bool = False

    def label_scores(self, predictions: Numbers, noise: Numbers = None) -> Any:
        """Score every class."""
        xp = namespace(predictions, noise)
        return self._scores(xp, _probabilities(xp, predictions), self._noise(xp, predictions, noise))

    def __call__(self, predictions: Numbers, labels: Numbers, noise: Numbers = None) -> Any:
        """Score each label."""
        scores = self.label_scores(predictions, noise)
        xp = namespace(scores, labels)
        labels = _classes(labels, scores.shape)
        if xp is np:
            return np.take_along_axis(scores, labels[..., None], -1)[..., 0]
        # A traced label that is none of the classes has no score.
        return jnp.take_along_axis(scores, jnp.asarray(labels)[..., None], -1, mode="fill", fill_value=jnp.nan)[..., 0]

    def set(self, predictions: Numbers, thresholds: Numbers, noise: Numbers = None) -> Any:
        """Invert thresholds to a mask of the classes in each set."""
        return label_mask(self.label_scores(predictions, noise), thresholds)

    def _scores(self, xp: Any, p: Any, u: Any) -> Any:
        raise NotImplementedError

    def _noise(self, xp: Any, predictions: Any, noise: Any) -> Any:
        if self.randomized != (noise is not None):
            owner = type(self).__name__
            raise ValueError(
                f"noise is needed by {owner}(randomized=True): pass a uniform number for each prediction"
                if self.randomized
                else f"noise is given, and this {owner} is not randomized"
            )
        if noise is None:
            return 1.0
        (noise,) = reals(xp, noise=noise)
        same_shape("noise", noise, np.shape(predictions)[:-1], "one number for each prediction")
        if not is_traced(noise):
            complain_at("noise", noise, ~((noise >= 0) & (noise <= 1)), "must lie in [0, 1]")
        return noise[..., None]


def label_mask(scores: Any, thresholds: Numbers) -> Any:
    """Compare the scores of all classes with thresholds."""
    limits = read_thresholds(namespace_of_sets(scores, thresholds), thresholds, scores.shape[:-1])
    # In the precision of the thresholds, in which past scores were kept: an equal score stays equal.
    return scores[..., None, :].astype(limits.dtype) <= limits[..., None]


def _probabilities(xp: Any, predictions: Numbers) -> Any:
    (p,) = reals(xp, predictions=predictions)
    if p.ndim == 0 or p.shape[-1] == 0:
        raise ValueError(f"predictions has shape {p.shape}: must be (..., K), the probabilities of K classes")
    if not is_traced(p):
        complain_at("predictions", p, ~((p >= 0) & (p <= 1)), "a probability lies in [0, 1]")
    return p


def _classes(labels: Numbers, shape: tuple[int, ...]) -> Any:
    if not is_traced(labels) and np.asarray(labels).dtype.kind in "USO":
        raise ValueError("labels are names: pass their numbers, such as numpy.searchsorted(model.classes_, labels)")
    array = as_numbers("labels", labels)
    same_shape("labels", array, shape[:-1], "one label for each prediction")
    if is_traced(array):
        # Negative numbers would count from the end.
        fine = (array >= 0) & (array < shape[-1]) & (array == jnp.floor(array))
        return jnp.where(fine, array, shape[-1]).astype(jnp.int32)
    wrong = (array < 0) | (array >= shape[-1]) | (array != np.floor(array))
    complain_at("labels", array, wrong, f"must be the number of a class, from 0 to {shape[-1] - 1}")
    return np.asarray(array).astype(np.int64 if array.dtype.kind != "i" else array.dtype)
