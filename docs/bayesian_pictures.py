"""Draw the pictures of the pages on posteriors and diagnostics: part of `make pictures`."""

import pathlib
import warnings

import matplotlib

matplotlib.use("Agg")
import jax
import matplotlib.pyplot as plt
import numpy as np

import dpconformal as dpc
from dpconformal import diagnostics, dirichlet

jax.config.update("jax_enable_x64", True)
HERE = pathlib.Path(__file__).parent / "images"
UNIFORM, TRUTH = dpc.priors.Uniform(), dpc.priors.Beta(2, 5)
fixed, root = dpc.schedules.Dirichlet(5.0), dpc.schedules.InverseSqrt()


def keep(figure, name):
    figure.savefig(HERE / f"{name}.png", dpi=110)
    plt.close(figure)


posterior = dirichlet.Posterior(UNIFORM, 5.0, dpc.streams.iid(60))
keep(diagnostics.plot_posterior(posterior, draws=posterior.sample(jax.random.key(0), 4000)), "posterior")

figure, axes = plt.subplots(1, 2, figsize=(9.2, 4.2), layout="constrained", sharey=True)
for ax, count in zip(axes, (500, 5000), strict=True):
    pits = {
        name: diagnostics.credible_pits(TRUTH, UNIFORM, schedule, count, datasets=20_000)
        for name, schedule in (("concentration 5", fixed), ("λ = 1/√t", root))
    }
    diagnostics.plot_calibration(pits, ax=ax)
    ax.set_title(f"after {count:,} scores")
    print(count, {name: round(float(diagnostics.interval_coverage(p, 0.9)), 3) for name, p in pits.items()})
axes[1].set_ylabel("")
keep(figure, "calibration")

scores = np.random.default_rng(0).beta(2, 5, 120)
model = dirichlet.MixtureModel(scores, components=12)
fitted = dirichlet.fit(model, jax.random.key(0), target_accept_prob=0.95, progress_bar=False)
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    print(diagnostics.summary(fitted).round(4).to_string())
x = np.linspace(0, 1, 401)
belief = dirichlet.Posterior(UNIFORM, 5.0, scores).mean
figure, ax = plt.subplots(figsize=(6.4, 3.8), layout="constrained")
draws = np.asarray(fitted.cdf(x)).reshape(-1, x.size)
ax.fill_between(x, *np.quantile(draws, [0.05, 0.95], axis=0), color="#dbe7f1", linewidth=0, label="mixture, 90 %")
ax.step(x, belief.cdf(x), where="post", color="#c2410c", linewidth=1.2, label="belief, a = 5")
ax.plot(x, fitted.predictive_cdf(x), color="#1d6fb8", linewidth=1.6, label="mixture")
ax.plot(x, TRUTH.cdf(x), color="#222222", linewidth=0.9, linestyle=":", label="truth")
ax.set(xlabel="score", ylabel="P(next score ≤ x)", title="120 scores, smoothed")
ax.spines[["top", "right"]].set_visible(False)
ax.legend(loc="lower right", frameon=False, fontsize=9)
keep(figure, "mixture")

figure, axes = plt.subplots(1, 2, figsize=(9.6, 3.4), layout="constrained")
for ax, (name, stream) in zip(
    axes, (("iid", dpc.streams.iid(2000)), ("drifting", dpc.streams.drifting(2000))), strict=True
):
    diagnostics.plot_uniformity(diagnostics.smoothed_ranks(stream), ax=ax)
    ax.set_title(f"ranks of {name} scores\n{ax.get_title()}", fontsize=10)
keep(figure, "ranks")

LEVELS = [0.1, 0.25, 0.5, 0.75, 0.9, 0.95]
run = dpc.replay(dpc.Exact(), dpc.streams.iid(2000), LEVELS)
keep(diagnostics.plot_coverage(run).figure, "coverage_curve")
jump = np.concatenate([dpc.streams.iid(1000), 0.3 + 0.7 * dpc.streams.iid(1000, seed=1)])
keep(diagnostics.plot_rolling(dpc.replay(dpc.Exact(), jump, [0.5, 0.9]), 200), "rolling_coverage")

keep(diagnostics.plot_sbc(diagnostics.sbc(UNIFORM, 5.0, count=50)), "sbc")
keep(diagnostics.plot_sbc(diagnostics.sbc(UNIFORM, 5.0, count=50, fit_concentration=20.0)), "sbc_wrong")

belief = dpc.Exact(schedule=fixed)
learners = {
    "DP, a = 5": belief,
    "DP, good prior, a = 20": dpc.Exact(dpc.priors.Beta(2.5, 5), dpc.schedules.Dirichlet(20.0)),
    "DP, 1/√t": dpc.Exact(),
    "ERM": dpc.ERM(),
    "split conformal": dpc.SplitConformal(),
    "corrected": dpc.Corrected(belief),
    "credible, 0.95": dpc.Credible(belief, 0.95),
}
found = diagnostics.compare(
    learners, lambda rng, n: rng.beta(2, 5, n), datasets=400, rounds=100, burn_in=20, levels=[0.5, 0.8, 0.9]
)
keep(diagnostics.plot_compare(found), "compare")
print(found.coverage_mean.sel(level=0.9).round(3).to_series().to_string())
