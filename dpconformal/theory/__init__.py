"""The paper's theorems as code: their bounds, and certificates that a run has kept them."""

from dpconformal.theory.adversary import Hardest, hardest_sequence
from dpconformal.theory.bounds import (
    corrected_level,
    corrected_regret_bound,
    coverage_bound,
    coverage_bracket,
    delayed_regret_bound,
    discounted_lower_bound,
    discounted_regret_bound,
    excess_risk_bound,
    quantized_regret_bound,
    regret_bound,
)
from dpconformal.theory.certificate import Certificate, certify
from dpconformal.theory.ftrl import (
    concentration,
    excess_regularizer,
    ftrl_objective,
    ftrl_threshold,
    regularizer,
    strong_convexity,
)
from dpconformal.theory.groups import group_regret_bound
from dpconformal.theory.path import path_bound

__all__ = [
    "Certificate",
    "Hardest",
    "certify",
    "concentration",
    "corrected_level",
    "corrected_regret_bound",
    "coverage_bound",
    "coverage_bracket",
    "delayed_regret_bound",
    "discounted_lower_bound",
    "discounted_regret_bound",
    "excess_regularizer",
    "excess_risk_bound",
    "ftrl_objective",
    "ftrl_threshold",
    "group_regret_bound",
    "hardest_sequence",
    "path_bound",
    "quantized_regret_bound",
    "regret_bound",
    "regularizer",
    "strong_convexity",
]
