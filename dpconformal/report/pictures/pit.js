// How often the scores fell into each part of the belief.
function drawPit(figure, { series }) {
  const place = figure.querySelector(".drawing"), note = figure.querySelector(".note");
  const legend = figure.querySelector(".legend");
  legend.hidden = !series.pit;
  note.textContent = "";
  if (!series.pit) {
    instead(place, !DATA.named ? "The run does not name its method, so there is no belief to look at."
      : DATA.head ? "This method asks a belief for levels with a margin of safety. What it hands out is no distribution of its own, so this picture is left out."
      : "This method has no distribution behind its thresholds, so this picture is left out.");
    return;
  }
  const { counts, low, high } = series.pit, bars = counts.length;
  const inside = counts.filter((count) => count >= low && count <= high).length;
  const { body, toX, toY, inner } = axes(place, {
    x: [0, 1], y: [0, 1.08 * Math.max(high, ...counts)], xName: "share of the belief below the score", yName: "scores", xFormat: String, yFormat: whole,
    height: (width) => Math.max(230, Math.min(300, 0.5 * width)),
    title: `Histogram of where scores fell in the belief: ${inside} of ${bars} bars are as high as chance would have them.`,
  });
  const left = (i) => toX(i / bars) + 1, right = (i) => toX((i + 1) / bars) - 1;
  piece("path", { class: "bars", d: counts.map((count, i) => boxPath(left(i), toY(0), right(i), toY(count))).join("") }, body);
  piece("path", { class: "band", d: boxPath(inner.left, toY(low), inner.right, toY(high)) }, body);
  piece("path", { class: "dash", d: `M${inner.left} ${at(toY(series.rounds / bars))}H${inner.right}` }, body);
  counts.forEach((count, i) => piece("path", { class: count < low || count > high ? "top out" : "top", d: `M${at(left(i))} ${at(toY(count))}H${at(right(i))}` }, body));
  note.textContent =
    `${inside} of the ${bars} bars end inside the band, where a right belief has each of them 19 times in 20. ` +
    "Bars that rise to the right mean that scores came out larger than believed, so thresholds were too low; bars that fall, the opposite. " +
    "A U-shape means that the belief was too narrow, or late to notice change; a hill, that it was too wide.";
}
