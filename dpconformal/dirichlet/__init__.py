"""The Dirichlet process behind the belief: posteriors in closed form, samples, models, choices."""

from dpconformal.dirichlet.choice import Choice, choose
from dpconformal.dirichlet.concentration import ConcentrationPosterior, concentration_posterior
from dpconformal.dirichlet.concentration_model import ConcentrationModel
from dpconformal.dirichlet.draws import Draws
from dpconformal.dirichlet.fit import Fit, fit
from dpconformal.dirichlet.mixture_model import MixtureModel
from dpconformal.dirichlet.posterior import Posterior
from dpconformal.dirichlet.sizes import truncation
from dpconformal.dirichlet.sticks_model import SticksModel
from dpconformal.dirichlet.urn import future_scores

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
