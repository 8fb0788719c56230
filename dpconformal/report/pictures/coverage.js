// Coverage against level, then its distance from the diagonal.
function drawCoverage(figure, { series, k, level }) {
  const { levels } = DATA, { shares, interval } = series;
  const claims = series.table.map((row) => ({ level: row.level, low: real(row.low), high: real(row.high) })).filter((c) => !Number.isNaN(c.low));
  const said = `Level ${level} covered ${percent(shares[k])} of the scores.`;
  const first = axes(figure.querySelector(".drawing"), {
    x: [0, 1], y: [0, 1], xName: "confidence level", yName: "share of scores covered", xFormat: String, yFormat: (value) => `${num(100 * value)}\u00a0%`,
    height: (width) => Math.max(260, Math.min(560, 0.85 * width)), title: `Share of scores covered against confidence level. ${said}`,
  });
  shape(first, (value) => value);
  // Around the diagonal, in percentage points: what matters is too small to see above.
  const gap = levels.map((value, i) => 100 * (shares[i] - value));
  const bounds = [
    ...gap, ...claims.flatMap((c) => [100 * (c.low - c.level), 100 * (c.high - c.level)]),
    ...[0, 1].flatMap((end) => interval[end].map((value, i) => 100 * (value - levels[i]))),
  ];
  const reach = Math.max(...extent([...bounds, 1]).map(Math.abs));
  const second = axes(figure.querySelector(".second"), {
    x: [0, 1], y: roomy(-reach, reach, 0.04), xName: "confidence level", yName: "covered minus level, percentage points",
    xFormat: String, height: () => 190, paper: 135, title: `Distance of the share covered from the level. At level ${level}: ${num(gap[k], 3)} percentage points.`,
  });
  shape(second, (value, of) => 100 * (value - of));

  function shape({ body, toX, toY, inner }, show) {
    const x = levels.map(toX), y = (values) => values.map((value, i) => toY(show(value, levels[i])));
    if (DATA.steps) piece("path", { class: "band", d: areaPath(x, y(interval[0]), y(interval[1])) }, body);
    piece("path", { class: "dash", d: linePath([0, 1].map((value) => [toX(value), toY(show(value, value))])) }, body);
    const low = y(interval[0]), high = y(interval[1]), mid = y(shares);
    if (DATA.steps) piece("path", { class: "seen", d: linePath(x.map((value, i) => [value, mid[i]])) }, body);
    else x.forEach((value, i) => {
      piece("path", { class: "band", d: boxPath(value - 4, low[i], value + 4, high[i]) }, body);
      piece("circle", { class: "point", cx: at(value), cy: at(mid[i]), r: 3 }, body);
    });
    for (const claim of claims) {
      const here = at(toX(claim.level)), ends = [claim.low, claim.high].map((value) => at(toY(show(value, claim.level))));
      piece("path", { class: "theory", d: `M${here} ${ends[0]}V${ends[1]}M${here - 4} ${ends[0]}h8M${here - 4} ${ends[1]}h8` }, body);
    }
    piece("path", { class: "grid", d: `M${at(x[k])} ${inner.bottom}V${at(mid[k])}` }, body);
    piece("circle", { class: "spot", cx: at(x[k]), cy: at(mid[k]), r: 5 }, body);
  }
  document.getElementById("theory-key").hidden = !claims.length;
  const ends = [0, 1].map((end) => percent(interval[end][k])).join(" and ");
  const note = [`${said} Had the chance of being covered been the same in all rounds, it would be between ${ends} (Clopper and Pearson, 95 %).`];
  if (claims.length) note.push("Blue: where scores that are independent and alike leave the share 19 times in 20. Outside of it, they probably changed on the way.");
  else note.push("The theory has no band for the coverage of this method.");
  figure.querySelector(".note").textContent = note.join(" ");
}
