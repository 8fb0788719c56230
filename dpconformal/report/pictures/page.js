// Everything together: drawn at first, at every choice, at every change of size, and for paper.
const PICTURES = [["thresholds", drawThresholds], ["coverage", drawCoverage], ["rolling", drawRolling], ["regret", drawRegret], ["pit", drawPit]];

function drawAll() {
  const view = { series: seriesAt(state.series), k: state.k, level: String(DATA.levels[state.k]) };
  showControls(view);
  showFacts(view);
  drawTable(view);
  for (const [id, draw] of PICTURES) draw(byId(id), view);
}

function showFacts({ series }) {
  const total = DATA.series.length + DATA.omitted.length;
  const facts = [`${whole(series.rounds)} rounds`, `${DATA.asked.length} ${DATA.asked.length === 1 ? "level" : "levels"} asked for`];
  if (total > 1) facts.unshift(`${whole(total)} series`);
  if (total > 1 && series.name) facts[1] = `${series.name}: ${facts[1]}`;
  byId("facts").textContent = facts.join(" \u00b7 ");
}

function showOnce() {
  byId("learner").textContent = `${DATA.learner}.`;
  byId("code").firstElementChild.textContent = DATA.code;
  byId("code").hidden = !DATA.code;
  const { omitted, series } = DATA;
  byId("omitted").hidden = !omitted.length;
  const named = omitted.slice(0, 50).join(", ");
  const more = omitted.length > 50 ? ` and ${whole(omitted.length - 50)} more` : "";
  byId("omitted").textContent = `The page shows the first ${series.length} series. Left out: ${named}${more}.`;
  byId("why").textContent = DATA.steps
    ? `The method has one distribution for the next score, which answers every level: the slider goes through ${whole(DATA.levels.length)} of them, each computed from all scores, none interpolated.`
    : DATA.named
      ? "This method follows each level by itself, so the slider has only the levels that it was asked for."
      : "The run does not name its method, so the slider has only the levels that it was asked for.";
}

let waiting = false;
function redraw() {
  if (waiting) return;
  waiting = true;
  requestAnimationFrame(() => { waiting = false; drawAll(); });
}

showOnce();
setUpControls(redraw);
drawAll();
let width = document.documentElement.clientWidth;
new ResizeObserver(() => {
  // Drawing changes the height of the page, which is no reason to draw.
  if (document.documentElement.clientWidth !== width) { width = document.documentElement.clientWidth; redraw(); }
}).observe(document.documentElement);
addEventListener("beforeprint", () => { paperWidth = 680; drawAll(); });
addEventListener("afterprint", () => { paperWidth = null; drawAll(); });
