// Regret so far beside its bound, at the asked level nearest to the chosen one.
const BOUNDS = {
  own: "The dashed line is the bound of the theory on this very sequence: the regret cannot exceed it, whatever the scores.",
  discounted: "This method forgets, so losses count less the older they are, for the method and for the best threshold alike. The dashed line is the bound of the theory on this very sequence, for regret of this kind.",
  borrowed: "The method has no bound of its own here. The dashed line is what the belief Exact() guarantees on any scores in the same range, for comparison.",
  late: "Scores became known late. The dashed line is the bound of the theory for such a delay: no scores in this range lead to more regret.",
  unproved: "Scores became known late, and for this method the theory has no bound with a delay.",
  groups: "The theory bounds the regret of each group, against the best threshold for that group, and not that of all rounds together. dpconformal.theory.group_regret_bound(run) has these bounds, and the certificate checks them.",
  none: "The method is built to cover, not to keep the loss small, so the theory sets no bound.",
};

function drawRegret(figure, { series, k }) {
  const row = nearest(DATA.asked.map((i) => DATA.levels[i]), DATA.levels[k]);
  const level = String(DATA.levels[DATA.asked[row]]);
  const regret = series.regret[row], bound = series.bound[row];
  const place = figure.querySelector(".drawing"), note = figure.querySelector(".note");
  const forLevel = `Shown for level ${level}${DATA.levels[k] === Number(level) ? "" : ", the nearest that was asked for"}.`;
  const explained = series.kind === "long" ? `The bound is left out beyond ${whole(DATA.longest)} rounds.` : BOUNDS[series.kind];
  const finite = regret.every(Number.isFinite);
  figure.querySelector(".legend").hidden = !finite;
  document.getElementById("bound-key").hidden = !bound.some(Number.isFinite);
  if (!finite) {
    instead(place, `At level ${level} the regret is infinite: in some round the threshold was infinite, and so was its loss. There is nothing to draw.`);
    note.textContent = forLevel;
    return;
  }
  const name = series.kind === "discounted" ? "discounted regret" : "regret";
  const [low, high] = extent([...regret, ...bound, 0]);
  const { body, toX, toY, inner } = axes(place, {
    x: [0, series.rounds], y: roomy(low, high), xName: "round", yName: `${name}, in units of the score`,
    height: (width) => Math.max(230, Math.min(330, 0.5 * width)),
    title: `${name} at level ${level}: ${num(regret.at(-1), 3)} at the end, ${num(bound.at(-1), 3)} allowed.`,
  });
  piece("path", { class: "axis", d: `M${inner.left} ${at(toY(0))}H${inner.right}` }, body);
  const line = (values) => linePath(values.map((v, i) => (Number.isFinite(v) ? [toX(series.ends[i]), toY(v)] : null)));
  piece("path", { class: "dash", d: line(bound) }, body);
  piece("path", { class: "curve", d: line(regret) }, body);
  const endless = bound.includes(Infinity) ? " From some round on the bound is infinite, which says nothing; it is not drawn there." : "";
  note.textContent = `${forLevel} At the end it is ${num(regret.at(-1), 3)}${Number.isFinite(bound.at(-1)) ? `, and ${num(bound.at(-1), 3)} is allowed` : ""}. ${explained}${endless}`;
}
