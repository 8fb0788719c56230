"""The Dirichlet process behind the belief: posteriors in closed form, samples, models, choices."""

from dpconformal.dirichlet.concentration import ConcentrationModel, ConcentrationPosterior, concentration_posterior
from dpconformal.dirichlet.models import Fit, MixtureModel, SticksModel, fit
from dpconformal.dirichlet.posterior import Posterior
from dpconformal.dirichlet.samplers import Draws, future_scores, truncation
from dpconformal.dirichlet.selection import Choice, choose

__all__ = [
    "Choice",
    "ConcentrationModel",
    "ConcentrationPosterior",
    "Draws",
    "Fit",
    "MixtureModel",
    "Posterior",
    "SticksModel",
    "choose",
    "concentration_posterior",
    "fit",
    "future_scores",
    "truncation",
]
