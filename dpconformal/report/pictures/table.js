// One row for each level that was asked for.
function drawTable({ series }) {
  const faded = series.kind === "discounted";
  const columns = [
    ["level", (row) => String(row.level)],
    ["covered", (row) => percent(real(row.coverage))],
    ["target", (row) => `${num(100 * row.level, 7)}\u00a0%`],
    ["mean threshold", (row) => num(real(row.size))],
    ["mean loss", (row) => num(real(row.loss), 3)],
    [faded ? "discounted regret" : "regret", (row) => num(real(row.regret), 3)],
    ["bound", (row) => num(real(row.bound), 3)],
    ["certificate", (row) => (row.verdict === "fail" ? `fails: ${row.failed.join(", ")}${inGroups(row.groups)}` : row.verdict)],
  ];
  const cell = (kind, text, name) => {
    const made = document.createElement(kind);
    made.textContent = text;
    made.dataset.name = name;
    return made;
  };
  const head = document.createElement("tr");
  head.setAttribute("role", "row");
  for (const [name] of columns) {
    const made = cell("th", name, name);
    made.scope = "col";
    made.setAttribute("role", "columnheader");
    head.append(made);
  }
  const rows = series.table.map((row) => {
    const made = document.createElement("tr");
    made.setAttribute("role", "row");
    columns.forEach(([name, write], i) => {
      const here = cell(i ? "td" : "th", write(row), name);
      here.setAttribute("role", i ? "cell" : "rowheader");
      if (!i) here.scope = "row";
      if (i === columns.length - 1) here.className = row.verdict;
      made.append(here);
    });
    return made;
  });
  const table = document.getElementById("table");
  table.tHead.replaceChildren(head);
  table.tBodies[0].replaceChildren(...rows);
  document.getElementById("table-note").textContent = tableNote(series);
}

// Names the first few groups in which a level fails.
function inGroups(groups) {
  if (!groups.length) return "";
  const more = groups.length > 3 ? ` and ${whole(groups.length - 3)} more` : "";
  return ` (in ${groups.slice(0, 3).join(", ")}${more})`;
}

function tableNote(series) {
  if (series.rounds > DATA.longest) return `Beyond ${whole(DATA.longest)} rounds the certificate and the bound are left out.`;
  const failed = new Set(series.table.flatMap((row) => row.failed));
  const ours = ["own", "discounted", "late", "unproved"].includes(series.kind);
  const said = [ours ? "The certificate holds the run to every theorem that speaks of its method."
    : series.kind === "none" ? "The certificate holds the run to what its method promises: thresholds that are the quantiles it asks its belief for, and coverage, if the scores are independent and alike."
    : series.kind === "groups" ? "The certificate holds each group to every theorem that speaks of its rounds. A level fails if it does in any group."
    : "The theorems are not about this method. The certificate holds it to what the belief Exact() guarantees on the same scores, so a failure is no fault in the run."];
  if (failed.has("coverage")) said.push("Coverage fails where it is outside of what independent scores that are all alike would give: the scores changed on the way, or a threshold is wrong.");
  if (failed.has("regret") || failed.has("discounted regret")) said.push("Regret fails where it exceeded its bound in some round, not necessarily the last.");
  if (failed.has("order")) said.push("Order fails where a higher level had a smaller threshold.");
  if (failed.has("optimality")) said.push("Optimality fails where a threshold is not the quantile of the belief that it should be.");
  if (series.table.some((row) => !Number.isFinite(real(row.size)))) said.push("A mean is infinite where a single threshold was: in such a round everything is covered, at an infinite price.");
  return said.join(" ");
}
