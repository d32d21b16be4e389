// The state of the page and its tabs; every change redraws the view.
const VIEWS = [
  ["matrix", "Matrix", matrixView],
  ["lines", "Lines", linesView],
  ["sentence", "Sentence", sentenceView],
  ["steps", "Over time", stepsView],
  ["heads", "All heads", headsView],
];
const HINTS = {
  matrix: "Point at a cell, or move to it with Tab and the arrow keys.",
  lines: "Point at a word, or move to it with Tab and the arrow keys, to see only its lines.",
  sentence: "Point at a word, or move to it with Tab and the arrow keys, to shade the other words by its weights.",
  steps: "Point at a bar, or move to it with Tab and the arrow keys.",
  heads: "Select a thumbnail to enlarge it.",
};
const state = {
  view: null,
  tab: "matrix",
  site: 0,
  head: "mean",
  units: "words",
  specials: "shown",
  measure: "weights",
  pooling: "largest",
  direction: "given",
  cursor: { row: 0, column: 0 },
  word: null,
};

function change(fresh, kept = null) {
  const moved = "site" in fresh && fresh.site !== state.site;
  Object.assign(state, fresh);
  const site = page.sites[state.site];
  const heads = site.heads > 1 ? site.heads : 0;
  if (moved) state.word = null;
  if (state.head !== "mean" && state.head >= heads) state.head = "mean";
  if (state.head === "mean" && site.form === "long" && !site.mean && heads) state.head = 0;
  drawAll(kept || (document.activeElement && document.activeElement.id));
}

function drawAll(focused) {
  document.getElementById("choices").replaceChildren(...choices(state, change));
  if (focused && document.getElementById(focused)) document.getElementById(focused).focus();
  drawView();
}

function drawView() {
  const panel = document.getElementById("panel");
  const [name, , view] = VIEWS.find(([each]) => each === state.tab);
  for (const tab of document.querySelectorAll('[role="tab"]')) {
    const chosen = tab.id === `tab-${name}`;
    tab.setAttribute("aria-selected", String(chosen));
    tab.tabIndex = chosen ? 0 : -1;
  }
  panel.setAttribute("aria-labelledby", `tab-${name}`);
  panel.dataset.view = name;
  panel.replaceChildren();
  hint(HINTS[name]);
  const table = tableOf(state);
  document.getElementById("caption").textContent = caption(table, state);
  const around = table.site.form === "long" && !["matrix", "heads"].includes(name);
  if (around) panel.append(element("p", { class: "quiet" }, `The ${table.rows.length} × ${table.columns.length} tokens around the cell selected in the matrix: rows from ${formatCount(table.firstRow + 1)}, columns from ${formatCount(table.firstColumn + 1)}.`));
  if (!table.rows.length || !table.columns.length) panel.append(element("p", { class: "quiet" }, "There are no tokens to show."));
  else view(panel, table, state, (fresh) => { state.tab = "matrix"; change(fresh, "tab-matrix"); });
}

function tabs() {
  const buttons = VIEWS.map(([name, label]) => element("button", { type: "button", role: "tab", id: `tab-${name}`, "aria-controls": "panel" }, label));
  buttons.forEach((tab, place) => {
    tab.addEventListener("click", () => {
      [state.tab] = VIEWS[place];
      drawView();
    });
    tab.addEventListener("keydown", (event) => {
      const next = { ArrowRight: place + 1, ArrowLeft: place - 1, Home: 0, End: buttons.length - 1 }[event.key];
      if (next === undefined) return;
      event.preventDefault();
      const other = buttons[(next + buttons.length) % buttons.length];
      other.click();
      other.focus();
    });
  });
  return element("div", { role: "tablist", "aria-label": "Views" }, ...buttons);
}

if (page.sites.length) {
  const explorer = document.getElementById("explorer");
  const still = document.getElementById("still");
  if (still) still.remove();
  explorer.prepend(
    element("div", { id: "choices" }),
    tabs(),
    element("p", { id: "caption", class: "quiet", role: "status" }),
    element("section", { id: "panel", role: "tabpanel", tabindex: -1 }),
    element("p", { id: "description", role: "status" }),
  );
  const first = page.sites.findIndex((site) => site.kind === "cross");
  change({ site: Math.max(first, 0) });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawView);
  let width = window.innerWidth;
  window.addEventListener("resize", () => {
    if (window.innerWidth !== width && document.querySelector("canvas.map")) drawView();
    width = window.innerWidth;
  });
}
