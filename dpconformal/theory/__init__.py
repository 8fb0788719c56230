"""The paper's theorems as code: what is promised, computed; and certificates that a run kept it."""

from dpconformal.theory.adversary import Hardest, hardest_sequence
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
from dpconformal.theory.iid import corrected_level, coverage_bound, coverage_bracket, excess_risk_bound
from dpconformal.theory.path import path_bound
from dpconformal.theory.regret import (
    corrected_regret_bound,
    delayed_regret_bound,
    discounted_lower_bound,
    discounted_regret_bound,
    quantized_regret_bound,
    regret_bound,
)

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
