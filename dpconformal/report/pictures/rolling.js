// The share covered in a moving window of blocks.
function drawRolling(figure, { series, k, level }) {
  const { blocks, rounds } = series.window, counts = series.covered(k);
  // The first block may be a short one, which no window holds.
  const begin = series.ends[0] < series.block ? 1 : 0;
  const ends = [], shares = [];
  let total = 0;
  counts.forEach((count, i) => {
    if (i < begin) return;
    total += count;
    if (i - blocks >= begin) total -= counts[i - blocks];
    if (i - blocks >= begin - 1) { ends.push(series.ends[i]); shares.push(total / rounds); }
  });
  const band = [series.chance[0][k], series.chance[1][k]], target = DATA.levels[k];
  const [low, high] = extent([...shares, ...band, target]);
  const range = roomy(low, high, 0.12);
  const least = Math.min(...shares), most = Math.max(...shares);
  const { body, toX, toY, inner } = axes(figure.querySelector(".drawing"), {
    x: [0, series.rounds], y: [Math.max(range[0], 0), Math.min(range[1], 1)], xName: "last round of the window", yName: "share covered",
    yFormat: (value) => `${num(100 * value)}\u00a0%`, height: (width) => Math.max(230, Math.min(330, 0.5 * width)),
    title: `Share covered in windows of ${whole(rounds)} rounds at level ${level}: between ${percent(least)} and ${percent(most)}.`,
  });
  piece("path", { class: "band", d: boxPath(inner.left, toY(band[0]), inner.right, toY(band[1])) }, body);
  piece("path", { class: "dash", d: `M${inner.left} ${at(toY(target))}H${inner.right}` }, body);
  piece("path", { class: "curve", d: linePath(ends.map((end, i) => [toX(end), toY(shares[i])])) }, body);
  if (ends.length === 1) piece("circle", { class: "spot", cx: at(toX(ends[0])), cy: at(toY(shares[0])), r: 4 }, body);
  const inside = shares.filter((share) => share >= band[0] - 1e-9 && share <= band[1] + 1e-9).length;
  figure.querySelector(".note").textContent =
    `Each point looks back on ${whole(rounds)} rounds; at level ${level} it ${least === most ? `is always ${percent(most)}` : `lies between ${percent(least)} and ${percent(most)}`}. ` +
    `A learner that knew the distribution of the scores would be inside the band at any one point 19 times in 20; ` +
    `this one is in ${percent(inside / shares.length)} of the points. Long stretches outside are more than chance.`;
}
