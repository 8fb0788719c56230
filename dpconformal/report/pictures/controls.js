// Slider, number box, shortcuts, series and the address: they all say which level of which series is shown.
const byId = (id) => document.getElementById(id);
const state = { series: 0, k: 0 };

function fromAddress() {
  const given = new URLSearchParams(location.hash.slice(1));
  const level = Number.parseFloat(given.get("level")), series = Number.parseInt(given.get("series"), 10);
  if (Number.isFinite(level)) state.k = nearest(DATA.levels, level);
  if (series >= 1 && series <= DATA.series.length) state.series = series - 1;
}

let pending = 0;
function toAddress() {
  // Not at every step of a drag: browsers limit how often an address may change.
  clearTimeout(pending);
  pending = setTimeout(() => {
    const series = DATA.series.length > 1 ? `&series=${state.series + 1}` : "";
    try { history.replaceState(null, "", `#level=${DATA.levels[state.k]}${series}`); } catch { /* the page works without */ }
  }, 300);
}

function showControls({ series, k, level }) {
  byId("level").value = k;
  byId("level").setAttribute("aria-valuetext", `level ${level}`);
  if (document.activeElement !== byId("number")) byId("number").value = level;
  byId("series").value = state.series;
  for (const button of byId("shortcuts").children) button.setAttribute("aria-pressed", String(Number(button.value) === k));
  // A method that must be told more before a round has no threshold yet for the next one.
  const next = series.following[k], known = !Number.isNaN(next);
  const threshold = known ? next : series.thresholds(k).at(-1);
  const name = known ? "next threshold" : "last threshold";
  const count = `(${whole(sum(series.covered(k)))} of ${whole(series.rounds)})`;
  byId("read-level").textContent = level;
  byId("read-name").textContent = name;
  byId("read-threshold").textContent = num(threshold);
  byId("read-coverage").textContent = percent(series.shares[k]);
  byId("read-count").textContent = count;
  const of = series.name ? ` of series ${series.name}` : "";
  byId("chosen").textContent =
    `Pictures${of} at confidence level ${level}: ${name} ${num(threshold)}, ${percent(series.shares[k])} of the scores covered ${count}.`;
}

function setUpControls(changed) {
  const choose = (change) => { Object.assign(state, change); changed(); toAddress(); };
  const { levels, asked, series, steps } = DATA;
  byId("level").max = levels.length - 1;
  byId("level").disabled = levels.length === 1;
  byId("number").step = steps ? 1 / steps : "any";
  byId("level").addEventListener("input", (event) => choose({ k: Number(event.target.value) }));
  byId("number").addEventListener("input", (event) => {
    const typed = event.target.valueAsNumber;
    if (typed >= 0 && typed <= 1) choose({ k: nearest(levels, typed) });
  });
  // What was typed becomes the level that is shown.
  byId("number").addEventListener("change", (event) => { event.target.value = levels[state.k]; });
  for (const k of asked.slice(0, 9)) {
    const button = document.createElement("button");
    button.type = "button";
    button.value = k;
    button.textContent = levels[k];
    button.addEventListener("click", () => { byId("number").value = levels[k]; choose({ k }); });
    byId("shortcuts").append(button);
  }
  series.forEach((one, i) => byId("series").append(new Option(one.name || "(no name)", i)));
  byId("series-control").hidden = series.length === 1;
  byId("series").addEventListener("change", (event) => choose({ series: Number(event.target.value) }));
  addEventListener("hashchange", () => { fromAddress(); changed(); });
  state.k = asked[nearest(asked.map((k) => levels[k]), 0.9)];
  fromAddress();
}
