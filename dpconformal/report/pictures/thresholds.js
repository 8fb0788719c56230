// Scores as dots, the threshold of the chosen level as a line.
function drawThresholds(figure, { series, k, level }) {
  const curve = series.thresholds(k), { least, most, count } = series.dots;
  // The scores are always in view; the line too, unless it is further away than they are wide.
  const span = most - least || Math.abs(most) || 1;
  const reach = extent(curve.filter((v) => v >= least - span && v <= most + span)) ?? [least, most];
  const range = roomy(Math.min(least, reach[0]), Math.max(most, reach[1]), 0.04);
  const plot = axes(figure.querySelector(".drawing"), {
    x: [0, series.rounds], y: range, xName: "round", yName: "score",
    height: (width) => Math.max(240, Math.min(420, 0.42 * width)), paper: 300,
    title: `Scores of ${whole(series.rounds)} rounds and the threshold of level ${level}; the latest is ${num(curve.at(-1))}.`,
  });
  const { toX, toY, inner, body } = plot;
  const round = (i) => Math.floor(((i + 0.5) * series.rounds) / count) + 1;
  piece("path", { class: "dots", d: dotPath(series.scores.map((score, i) => [toX(round(i)), toY(score)])) }, body);
  const inside = (v) => v >= range[0] && v <= range[1];
  const points = curve.map((v, i) => (Number.isFinite(v) ? [toX(series.ends[i]), toY(v)] : null));
  piece("path", { class: "curve", id: "curve", d: linePath(points) }, body);
  const alone = points.filter((point, i) => point && !points[i - 1] && !points[i + 1]);
  for (const [cx, cy] of alone) piece("circle", { class: "spot", cx: at(cx), cy: at(cy), r: 3 }, body);
  // Thresholds beyond the picture, infinite ones above all, run along its edge.
  for (const [beyond, edge] of [[(v) => v > range[1], inner.top - 1], [(v) => v < range[0], inner.bottom + 1]]) {
    const along = curve.map((v, i) => (beyond(v) ? [toX(series.ends[i]), edge] : null));
    const single = along.map((p, i) => (p && !along[i - 1] && !along[i + 1] ? `M${at(p[0] - 2)} ${edge}h4` : ""));
    if (along.some(Boolean)) piece("path", { class: "far", d: linePath(along) + single.join("") }, body);
  }
  const far = curve.filter((v) => !inside(v) && !Number.isNaN(v)).length;
  const note = [
    count < series.rounds ? `The dots are ${whole(count)} of the ${whole(series.rounds)} scores, evenly spaced.` : "Every score has its dot.",
    series.block > 1 ? `The line joins thresholds that are ${whole(series.block)} rounds apart.` : "The line has every round.",
  ];
  if (curve.includes(Infinity)) note.push("Where it runs dotted along the upper edge, the threshold is infinite: every label is in the set, and every score is covered.");
  else if (far) note.push("Where it runs dotted along an edge, the threshold is outside the picture.");
  if (curve.includes(-Infinity)) note.push("A threshold of \u2212\u221e covers nothing.");
  figure.querySelector(".note").textContent = note.join(" ");
}
